"""Times block-sparse products and attention and their peers on one GPU.

    python bench/block_matmul.py [--limit SECONDS] [--only CONTENDER ...] [--kinds sdd dsd dds attention] [--small]

bf16, random layouts with a full diagonal. Products: square, "dense" is torch.matmul of as many multiplications; their
unit is TFLOP/s of the blocks that are there, ``of_dense`` the share of dense's. Attention: forward and both directions
(forward and backward through autograd); "flex" is FlexAttention compiled, with blocks of 128 (the layout rounded up
and a test of elements where blocks are 64), "flex64" the same with blocks of 64. Every contender runs in a process of
its own under a time limit; one that can't be imported is left out with its reason. The result is
bench/results/block-matmul-GPU.json, with each result's relative error against float32 (attention: of the first head).
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import machine
from onelaunch.sparse import BlockLayout, random
from process import RESULTS, emit, run_worker, write_json
from rows import measure

CONTENDERS = ("dense", "onelaunch", "flex", "flex64", "blksprs")
PRODUCTS = ("sdd", "dsd", "dds")
#: Heads and size of products, so that the smaller are not over at once.
SIZES = ((4, 4096), (2, 8192), (1, 16384))


@dataclass(frozen=True)
class Case:
    """What is timed. dim is the head dim of attention (0 for products); direction forward or both."""

    kind: str
    heads: int
    size: int
    block: int
    density: float
    dim: int = 0
    direction: str = "forward"

    def layout(self) -> BlockLayout:
        return random(self.size // self.block, block=self.block, density=self.density, heads=self.heads)

    def operations(self, layout: BlockLayout) -> float:
        """Multiplications and additions of the blocks that are there (backward: five products)."""
        area = layout.nnz * self.block**2
        if self.kind in PRODUCTS:
            return 2.0 * area * self.size
        return area * self.dim * (4.0 if self.direction == "forward" else 14.0)


def cases(kinds: list[str], small: bool) -> list[Case]:
    """Products of all sizes, densities and blocks; attention of 16,384 tokens."""
    sizes, tokens = (((1, 512),), 512) if small else (SIZES, 16384)
    found = [
        Case(kind, heads, size, block, density)
        for kind in kinds
        if kind in PRODUCTS
        for heads, size in sizes
        for density in (0.05, 0.1, 0.25)
        for block in (64, 128)
    ]
    if "attention" in kinds:
        sides = [(block, dim, way) for block in (128, 64) for dim in (64, 128) for way in ("forward", "both")]
        found += [Case("attention", 16, tokens, block, 0.1, dim, way) for block, dim, way in sides]
    return found


def normal(*shape: int) -> Any:
    import torch

    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def product(name: str, case: Case, layout: BlockLayout) -> tuple[Callable[[], Any], Callable[[], Any], float]:
    """The timed call, what it should give, and its operations."""
    import torch

    shape = (1, case.heads, case.size, case.size)
    if name == "dense":
        columns = max(64, round(layout.nnz * case.block**2 / case.heads / case.size / 64) * 64)
        a, b = normal(*shape), normal(*shape[:3], columns)
        return lambda: a @ b, lambda: a @ b, 2.0 * case.heads * case.size**2 * columns
    dense, other = normal(*shape), normal(*shape)
    values = layout.from_dense(other)
    float_of = {
        "sdd": lambda: layout.from_dense(dense.float() @ other.float()),
        "dsd": lambda: layout.to_dense(values.float()) @ dense.float(),
        "dds": lambda: dense.float() @ layout.to_dense(values.float()),
    }[case.kind]
    work = case.operations(layout)
    if name == "onelaunch":
        matmul = importlib.import_module("onelaunch.torch.block_sparse").matmul
        given = {"sdd": (dense, other), "dsd": (values, dense), "dds": (dense, values)}[case.kind]
        return lambda: matmul(*given, layout, case.kind), float_of, work
    matmul = importlib.import_module("blksprs").ops.matmul
    full = torch.ones(layout.mask.shape, dtype=torch.bool, device="cuda")
    sparse = torch.from_numpy(layout.mask.copy()).cuda()
    every = BlockLayout(full.cpu(), case.block)
    blocks = {"dense": every.from_dense(dense)[0], "other": every.from_dense(other)[0], "values": values[0]}
    tags = {"sdd": ("dense", "other"), "dsd": ("values", "dense"), "dds": ("dense", "values")}[case.kind]
    layouts = [sparse if tag == "values" else full for tag in tags]
    out = sparse if case.kind == "sdd" else full
    cache: dict[str, Any] = {}

    def run() -> Any:
        x, y = (blocks[tag] for tag in tags)
        return matmul(x, layouts[0], y, layouts[1], out, case.block, layout_cache=cache)

    wanted = float_of if case.kind == "sdd" else lambda: every.from_dense(float_of())
    return run, wanted, work


def attention(name: str, case: Case, layout: BlockLayout) -> tuple[Callable[[], Any], Callable[[], Any], float]:
    """The same, of (1, heads, size, dim)."""
    import torch

    q, k, v = (normal(1, case.heads, case.size, case.dim).requires_grad_(case.direction == "both") for _ in range(3))
    up = normal(1, case.heads, case.size, case.dim)
    function = _attention(name, case, layout)

    def run() -> Any:
        if case.direction == "forward":
            with torch.no_grad():
                return function(q, k, v)
        out = function(q, k, v)
        return torch.cat([out, *torch.autograd.grad(out, (q, k, v), up)])

    def wanted() -> Any:
        """Of the first head, by PyTorch on dense float32 scores."""
        first = [t[:, :1].detach().float().requires_grad_() for t in (q, k, v)]
        mask = torch.from_numpy(layout.mask[0].copy()).cuda()
        mask = mask.repeat_interleave(case.block, 0).repeat_interleave(case.block, 1)
        z = (first[0] @ first[1].mT * case.dim**-0.5).masked_fill(~mask, float("-inf"))
        out = torch.softmax(z, -1) @ first[2]
        return (
            torch.cat([out, *torch.autograd.grad(out, first, up[:, :1].float())]) if case.direction == "both" else out
        )

    return run, wanted, case.operations(layout)


def _attention(name: str, case: Case, layout: BlockLayout) -> Callable[..., Any]:
    import torch

    if name == "onelaunch":
        ours = importlib.import_module("onelaunch.torch.block_sparse").attention
        return lambda q, k, v: ours(q, k, v, layout)
    flex = importlib.import_module("torch.nn.attention.flex_attention")
    table = torch.from_numpy(layout.mask.copy()).cuda()
    block = case.block

    def seen(b: Any, h: Any, m: Any, n: Any) -> Any:
        return table[h, m // block, n // block]

    side = 64 if name == "flex64" else 128
    mask = flex.create_block_mask(seen, None, case.heads, case.size, case.size, BLOCK_SIZE=side, _compile=True)
    compiled = torch.compile(flex.flex_attention, dynamic=False)
    return lambda q, k, v: compiled(q, k, v, block_mask=mask)


def fits(name: str, case: Case) -> bool:
    """Whether a contender takes part."""
    if case.kind == "attention":
        return name in ("onelaunch", "flex") or (name == "flex64" and case.block == 64)
    return name in ("dense", "onelaunch") or (name == "blksprs" and case.size < 16384)


def work(name: str, chosen: list[Case]) -> None:
    """A worker: a record for each case."""
    import torch

    flush = torch.empty(2**28, dtype=torch.int8, device="cuda")
    for case in chosen:
        torch.manual_seed(0)
        layout = case.layout()
        record: dict[str, Any] = {"contender": name, **asdict(case)}
        try:
            prepare = attention if case.kind == "attention" else product
            run, wanted, operations = prepare(name, case, layout)
            found, want = run().float(), wanted().float()
            found = found[:, :1] if case.kind == "attention" else found.reshape(want.shape)
            record["error"] = ((found - want).norm() / want.norm()).item()
            del found, want
            record |= measure(lambda: None, lambda _, run=run: run(), flush, seconds=0.15)
            record["tflops"] = operations / record["median_ms"] / 1e9
        except Exception as error:
            record["status"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        emit(record)


def compare(records: list[dict[str, Any]]) -> None:
    """Each product's ``of_dense``; each attention's ``over_flex``, how many times as fast as FlexAttention it is."""
    keys = ("kind", "heads", "size", "block", "density", "dim", "direction")
    by = {(r["contender"], *(r[k] for k in keys)): r for r in records if "median_ms" in r}
    for r in by.values():
        place = tuple(r[k] for k in keys)
        if r["kind"] in PRODUCTS and ("dense", *place) in by:
            r["of_dense"] = r["tflops"] / by["dense", *place]["tflops"]
        flexes = [by[n, *place]["median_ms"] for n in ("flex", "flex64") if (n, *place) in by]
        if flexes:
            r["over_flex"] = min(flexes) / r["median_ms"]


def main() -> None:
    """Supervise the workers, or be one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=150.0, help="seconds for each contender")
    parser.add_argument("--only", nargs="*", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--kinds", nargs="*", default=[*PRODUCTS, "attention"])
    parser.add_argument("--small", action="store_true", help="a quick trial of the script")
    parser.add_argument("--worker", choices=CONTENDERS)
    options = parser.parse_args()
    chosen = cases(options.kinds, options.small)
    if options.worker:
        work(options.worker, [c for c in chosen if fits(options.worker, c)])
        return
    where = machine.describe()
    if where["gpu"] == "none":
        sys.exit("bench/block_matmul.py needs a GPU")
    records: list[dict[str, Any]] = []
    status: dict[str, str] = {}
    passed = ["--kinds", *options.kinds, *(["--small"] if options.small else [])]
    for name in options.only:
        outcome = run_worker("block_matmul.py", ["--worker", name, *passed], options.limit)
        records += outcome.records
        status[name] = outcome.status
        print(f"{name}: {outcome.status}, {len(outcome.records)} cases", flush=True)
    compare(records)
    slug = re.sub(r"[^a-z0-9]+", "-", str(where["gpu"]).lower()).strip("-")
    path = RESULTS / f"block-matmul-{slug}.json"
    peers = {"blksprs": machine.version("blksprs")}
    write_json(path, {"machine": where, "peers": peers, "status": status, "results": records})
    print(f"written: {path}")
    for r in records:
        shown = (
            f"{r['median_ms']:.3f} ms {r['tflops']:.0f} TFLOP/s error {r['error']:.4f}"
            if "tflops" in r
            else r["status"]
        )
        ratio = "".join(f" {k} {r[k]:.2f}" for k in ("of_dense", "over_flex") if k in r)
        print(
            *(r[k] for k in ("contender", "kind", "heads", "size", "block", "density", "dim", "direction")),
            shown + ratio,
        )


if __name__ == "__main__":
    main()
