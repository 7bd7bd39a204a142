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
