"""Tables of the row kernels' measurements: each a function of a run's JSON that gives markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
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


# --- bench/rows.py -------------------------------------------------------------------------------------------


def rows(run: Run, kind: str, directions: Sequence[str], cell: Callable[[Sequence[Run | None]], str]) -> str:
    """One kind of row kernel: a line for each shape; a cell for each contender's records of some directions."""
    found = {
        (r["contender"], (r["dtype"], r["columns"], r["rows"]), r["direction"]): r
        for r in run["results"]
        if r["kind"] == kind and r["contender"] != "copy"
    }
    measured = {r["contender"] for r in run["results"] if "of_copy" in r}
    names = sorted({name for name, _, _ in found} & measured, key=lambda name: (not name.startswith("onelaunch"), name))
    body = []
    for shape in sorted({shape for _, shape, _ in found}, key=lambda shape: (shape[0] != "float32", *shape[1:])):
        dtype, columns, height = shape
        records = [[found.get((name, shape, d)) for d in directions] for name in names]
        body.append([f"{height:,} × {columns:,} {dtype.replace('loat', '')}", *map(cell, records)])
    return f"{where(run)}{not_run(run)}\n\n{markdown(['rows × columns', *names], body)}"


def not_run(run: Run) -> str:
    """The contenders of which no case was measured, and why."""
    whys: dict[str, str] = {}
    for r in run["results"]:
        whys.setdefault(r["contender"], r.get("status", ""))
    missing = {r["contender"] for r in run["results"]} - {r["contender"] for r in run["results"] if "of_copy" in r}
    named = [f"{name} ({whys[name]})" for name in sorted(missing - {"copy"})]
    return f" Not run: {', '.join(named)}." if named else ""


def where(run: Run) -> str:
    """On what a run was measured, and its copy ceiling."""
    m = run["machine"]
    versions = {"PyTorch": m["versions"]["torch"], "Triton": m["versions"]["triton"], **run["peers"]}
    shown = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    rate = run.get("copy_bytes_per_s")
    copy = f" A copy: {rate / 1e9:,.0f} GB/s, read and written." if rate else ""
    return f"{m['gpu']}, {shown}; {m['date'][:10]}. Medians.{copy}"


def fraction(record: Run | None) -> str:
    """A record's fraction of the copy ceiling."""
    if record is None:
        return "–"
    return f"{record['of_copy']:.2f}" if "of_copy" in record else "fails"


def softmax(run: Run) -> str:
    """Fractions of the copy ceiling: forward / backward / both through autograd."""
    return rows(run, "softmax", ("forward", "backward", "both"), lambda found: " / ".join(map(fraction, found)))


def cross_entropy(run: Run) -> str:
    """Forward and backward: fraction of the copy ceiling, milliseconds, memory beside the logits."""

    def cell(found: Sequence[Run | None]) -> str:
        record = found[0]
        if record is None or "of_copy" not in record:
            return fraction(record)
        return f"{record['of_copy']:.2f}, {record['median_ms']:.3f} ms, {record['extra_bytes'] / 1e9:.1f} GB"

    return rows(run, "cross_entropy", ("both",), cell)


def in_jax(run: Run) -> str:
    """Of bench/rows_jax.py: milliseconds, and the memory that XLA plans beside arguments, results included."""
    named = {"softmax": "softmax", "cross_entropy": "cross-entropy", "linear": "linear cross-entropy, 4,096 features"}
    records = [r for r in run["results"] if r["kind"] in named and r["chunk"] is None]
    found = {(r["kind"], r["rows"], r["columns"], r["contender"]): r for r in records}

    def cell(record: Run | None) -> str:
        if record is None or "median_ms" not in record:
            return "–" if record is None else "fails"
        return f"{record['median_ms']:.3g} ms, {(record['temp_bytes'] + record['output_bytes']) / 1e9:.1f} GB"

    shapes = sorted({key[:3] for key in found}, key=lambda key: (list(named).index(key[0]), *key[1:]))
    body = [
        [
            named[kind],
            f"{rows:,} × {columns:,}",
            *(cell(found.get((kind, rows, columns, n))) for n in ("onelaunch", "xla")),
        ]
        for kind, rows, columns in shapes
    ]
    machine = run["machine"]
    versions = ", ".join(f"{name} {machine['versions'][name.lower()]}" for name in ("JAX", "Triton"))
    first = f"{machine['gpu']}, {versions}; {machine['date'][:10]}. bf16, forward and backward. Medians."
    return f"{first}\n\n{markdown(['', 'rows × columns', 'onelaunch.nn', 'XLA'], body)}"


def plot(run: Run, path: Path) -> None:
    """Fractions of the copy ceiling: softmax by columns, each direction and dtype, and cross-entropy by shape."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "onelaunch"
    from matplotlib import pyplot

    records = [r for r in run["results"] if "of_copy" in r]
    panels = [("softmax", d, t) for t in ("float32", "bfloat16") for d in ("forward", "backward")]
    panels.append(("cross_entropy", "both", "bfloat16"))
    figure, axes = pyplot.subplots(1, len(panels), figsize=(18, 3.6), sharey=True, layout="constrained")
    for axis, (kind, direction, dtype) in zip(axes, panels, strict=True):
        chosen = [r for r in records if (r["kind"], r["direction"], r["dtype"]) == (kind, direction, dtype)]
        columns = sorted({r["columns"] for r in chosen})
        for name in sorted({r["contender"] for r in records}):
            values = {r["columns"]: r["of_copy"] for r in chosen if r["contender"] == name}
            shown = [c for c in columns if c in values]
            axis.plot([columns.index(c) for c in shown], [values[c] for c in shown], marker="o", label=name)
        axis.set_xticks(range(len(columns)), [f"{c:,}" for c in columns], rotation=60)
        axis.set_title(f"{kind.replace('_', '-')} {'' if direction == 'both' else direction} {dtype}")
    axes[0].set_ylabel(f"of a copy's rate, {run['machine']['gpu']}")
    axes[0].set_ylim(0, 1.1)
    axes[-1].legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None})
