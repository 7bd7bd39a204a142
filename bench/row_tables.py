"""Tables of the row kernels' measurements: each a function of a run's JSON that gives markdown."""

from __future__ import annotations

from typing import Any

Run = dict[str, Any]


def markdown(head: list[str], body: list[list[str]]) -> str:
    """A markdown table."""
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def block_softmax(run: Run) -> str:
    """Of bench/block_sparse.py: share of the copy ceiling and milliseconds, by layout, direction and contender."""
    machine = run["machine"]
    versions = {**machine["versions"], **{n: v for n, v in run["peers"].items() if v}}
    shown = ", ".join(f"{name} {versions[name]}" for name in ("triton", "torch", "blksprs") if versions.get(name))
    results = [r for r in run["results"] if r["contender"] != "copy"]
    cases: dict[tuple[Any, ...], dict[str, Run]] = {}
    for r in results:
        layout = (r["heads"], r["size"], r["block"], r["density"], r["dtype"], r["direction"])
        cases.setdefault(layout, {})[r["contender"]] = r
    peers = [name for name in ("onelaunch", "blksprs", "dense") if any(name in found for found in cases.values())]
    body = []
    for (heads, size, block, density, dtype, direction), found in cases.items():
        what = "forward" if direction == "forward" else "forward + backward"
        dtype = {"float32": "f32", "bfloat16": "bf16"}[dtype]
        body.append([f"{heads} × {size:,}, {block}, {density:.2f}", dtype, what, *(share(found.get(n)) for n in peers)])
    head = ["heads × size, block, density", "dtype", "", *("PyTorch, dense" if n == "dense" else n for n in peers)]
    intro = f"{machine['gpu']}, {shown}. Fraction of the rate of a copy, and milliseconds; dense: of as many elements."
    return f"{intro}\n\n{markdown(head, sorted(body, key=lambda row: row[1] != 'f32'))}"


def share(record: Run | None) -> str:
    """A record as a cell."""
    if record is None:
        return ""
    if "of_copy" not in record:
        return "failed"
    return f"{record['of_copy']:.2f} ({record['median_ms']:.3f})"


def block_products(run: Run) -> str:
    """Of bench/block_matmul.py: rates of products beside dense ones, times of attention beside FlexAttention."""
    machine = run["machine"]
    shown = ", ".join(f"{n} {machine['versions'][n]}" for n in ("triton", "torch") if machine["versions"].get(n))
    keys = ("kind", "heads", "size", "block", "density", "dim", "direction")
    cases: dict[tuple[Any, ...], dict[str, Run]] = {}
    for r in run["results"]:
        cases.setdefault(tuple(r[k] for k in keys), {})[r["contender"]] = r
    products, attention = [], []
    for (kind, heads, size, block, density, dim, way), found in sorted(cases.items()):
        ours = found.get("onelaunch", {})
        if kind == "attention":
            cells = [milliseconds(found.get(n)) for n in ("onelaunch", "flex", "flex64")]
            attention.append([str(dim), str(block), way.replace("both", "forward + backward"), *cells])
            continue
        ratio = f"{ours['of_dense']:.2f}" if "of_dense" in ours else ""
        cells = [rate(found.get(n)) for n in ("onelaunch", "dense", "blksprs")]
        products.append([kind, f"{heads} × {size:,}", str(block), f"{density:.2f}", *cells, ratio])
    head = ["mode", "heads × size", "block", "density", "onelaunch", "dense", "blksprs", "of dense"]
    first = f"{machine['gpu']}, {shown}, bf16. TFLOP/s of the blocks; dense: torch.matmul of as many multiplications."
    second = (
        "Attention, 16 heads, 16,384 tokens, density .1, milliseconds; FlexAttention compiled, blocks of 128 or 64."
    )
    titles = ["head dim", "block", "", "onelaunch", "FlexAttention, 128", "FlexAttention, 64"]
    return f"{first}\n\n{markdown(head, products)}\n\n{second}\n\n{markdown(titles, attention)}"


def rate(record: Run | None) -> str:
    """TFLOP/s as a cell."""
    if record is None:
        return ""
    return f"{record['tflops']:.0f}" if "tflops" in record else "failed"


def milliseconds(record: Run | None) -> str:
    """Milliseconds as a cell."""
    if record is None:
        return ""
    return f"{record['median_ms']:.3f}" if "median_ms" in record else "failed"
