"""Times block-sparse products and attention and their peers on one GPU.

    python bench/block_matmul.py [--limit SECONDS] [--only CONTENDER ...] [--every] [--small]

bf16, random layouts with a full diagonal. Products: square, "dense" is torch.matmul of as many multiplications; their
unit is TFLOP/s of the blocks that are there, ``of_dense`` the share of dense's. Attention: forward and both directions
(forward and backward through autograd); "flex" is FlexAttention compiled, with blocks of 128 (the layout rounded up
and a test of elements where blocks are 64), "flex64" the same with blocks of 64. Every contender and group of cases has
a process of its own under a time limit; they compile side by side and have the GPU one after another. What can't be
imported is left out with its reason. The result is bench/results/block-matmul-GPU.json, written as results come, with
each one's relative error against float32 (attention: of the first head). --every: all sizes and densities.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from typing import Any

import machine
from onelaunch.sparse import BlockLayout, random
from process import RESULTS, emit, exclusive, run_worker, write_json

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


#: Cases that one process times: products or attention, block, head dim.
GROUPS = (("products", 64, 0), ("products", 128, 0), *(("attention", b, d) for b in (128, 64) for d in (64, 128)))


def cases(group: tuple[str, int, int], every: bool, small: bool) -> list[Case]:
    """Products of several sizes and densities, or attention of 16,384 tokens."""
    kind, block, dim = group
    if kind == "attention":
        return [Case(kind, 16, 512 if small else 16384, block, 0.1, dim, way) for way in ("forward", "both")]
    sizes = ((1, 512),) if small else SIZES if every else (SIZES[0], SIZES[-1])
    densities = (0.05, 0.1, 0.25) if every else (0.05, 0.25)
    return [Case(mode, *size, block, density) for size in sizes for density in densities for mode in PRODUCTS]


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
    matmul = importlib.import_module("blksprs.ops.matmul").matmul
    wrap = importlib.import_module("blksprs.utils.blksprs_tensor").BlksprsTensor.wrap
    full = torch.ones(layout.mask.shape, dtype=torch.bool, device="cuda")
    sparse = torch.from_numpy(layout.mask.copy()).cuda()
    every = BlockLayout(full.cpu(), case.block)
    blocks = {"dense": every.from_dense(dense)[0], "other": every.from_dense(other)[0], "values": values[0]}
    tags = {"sdd": ("dense", "other"), "dsd": ("values", "dense"), "dds": ("dense", "values")}[case.kind]
    layouts = [sparse if tag == "values" else full for tag in tags]
    out = sparse if case.kind == "sdd" else full
    cache: dict[str, Any] = {}

    def run() -> Any:
        x, y = (wrap(blocks[tag]) for tag in tags)
        found = matmul(x, layouts[0], y, layouts[1], out, case.block, layout_cache=cache)
        return found.as_subclass(torch.Tensor)

    wanted = float_of if case.kind == "sdd" else lambda: every.from_dense(float_of())
    return run, wanted, work


def attention(name: str, case: Case, layout: BlockLayout) -> tuple[Callable[[], Any], Callable[[], Any], float]:
    """The same, of (1, heads, size, dim)."""
    import torch

    q, k, v = (normal(1, case.heads, case.size, case.dim).requires_grad_() for _ in range(3))
    up = normal(1, case.heads, case.size, case.dim)
    function = _attention(name, case, layout)

    def run() -> Any:
        out = function(q, k, v)
        if case.direction == "forward":  # of a training step: the logsumexp is saved
            return out.detach()
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
    side = 64 if name == "flex64" else 128
    mask = block_mask(flex, layout, side)
    # Its own choice of tiles does not fit blocks of 64.
    tiles = ("BLOCK_M", "BLOCK_N", "BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2")
    options = dict.fromkeys(tiles, 64) if side == 64 else None
    compiled = torch.compile(flex.flex_attention, dynamic=False)
    return lambda q, k, v: compiled(q, k, v, block_mask=mask, kernel_options=options)


def block_mask(flex: Any, layout: BlockLayout, side: int) -> Any:
    """FlexAttention's form of a layout in blocks of ``side``: those whole are full, others test their elements."""
    import torch

    table, block = torch.from_numpy(layout.mask.copy()).to(normal(1).device), layout.block
    parts = side // block
    blocks = table.unflatten(1, (-1, parts)).unflatten(3, (-1, parts))
    full = blocks.all(4).all(2)[None]
    partial = blocks.any(4).any(2)[None] & ~full

    def lists(some: Any) -> tuple[Any, Any]:
        return some.sum(-1).int(), torch.argsort(some.int(), dim=-1, descending=True, stable=True).int()

    def seen(b: Any, h: Any, m: Any, n: Any) -> Any:
        return table[h, m // block, n // block]

    return flex.BlockMask.from_kv_blocks(*lists(partial), *lists(full), BLOCK_SIZE=side, mask_mod=seen)


def fits(name: str, group: tuple[str, int, int]) -> bool:
    """Whether a contender takes part."""
    if group[0] == "attention":
        return name in ("onelaunch", "flex") or (name == "flex64" and group[1] == 64)
    return name in ("dense", "onelaunch", "blksprs")


def work(name: str, chosen: list[Case]) -> None:
    """A worker: a record for each case."""
    import torch

    for case in chosen:
        if name == "blksprs" and case.size > 4096:
            continue
        torch.manual_seed(0)
        record: dict[str, Any] = {"contender": name, **asdict(case)}
        try:
            with exclusive():  # compiling as well: tuning runs kernels, which would slow another's
                record |= timed(name, case)
        except Exception as error:
            record["status"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        emit(record)


def timed(name: str, case: Case) -> dict[str, float]:
    """Error, time and rate."""
    do_bench = importlib.import_module("triton.testing").do_bench
    prepare = attention if case.kind == "attention" else product
    run, wanted, operations = prepare(name, case, case.layout())
    found, want = run().float(), wanted().float()
    found = found[:, :1] if case.kind == "attention" else found.reshape(want.shape)
    error = ((found - want).norm() / want.norm()).item()
    del found, want
    # Queued, the cache emptied between: what the device takes, not Python.
    low, median, high = do_bench(run, warmup=25, rep=150, quantiles=[0.25, 0.5, 0.75])
    return {"error": error, "median_ms": median, "low_ms": low, "high_ms": high, "tflops": operations / median / 1e9}


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
    parser.add_argument("--limit", type=float, default=150.0, help="seconds for each process")
    parser.add_argument("--only", nargs="*", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--every", action="store_true", help="all sizes and densities of products")
    parser.add_argument("--small", action="store_true", help="a quick trial of the script")
    parser.add_argument("--worker", choices=CONTENDERS)
    parser.add_argument("--group", type=int)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, cases(GROUPS[options.group], options.every, options.small))
    else:
        supervise(options)


def supervise(options: argparse.Namespace) -> None:
    """All workers side by side; the result is written after each."""
    where = machine.describe()
    if where["gpu"] == "none":
        sys.exit("bench/block_matmul.py needs a GPU")
    slug = re.sub(r"[^a-z0-9]+", "-", str(where["gpu"]).lower()).strip("-")
    path = RESULTS / f"block-matmul-{slug}.json"
    records: list[dict[str, Any]] = []
    status: dict[str, str] = {}
    flags = [flag for flag in ("--every", "--small") if getattr(options, flag[2:])]
    jobs = [(name, i) for i, group in enumerate(GROUPS) for name in options.only if fits(name, group)]
    with tempfile.NamedTemporaryFile() as lock, ThreadPoolExecutor(len(jobs)) as pool:
        started = {}
        for name, i in jobs:
            arguments = ["--worker", name, "--group", str(i), *flags]
            job = pool.submit(run_worker, "block_matmul.py", arguments, options.limit, {"BENCH_LOCK": lock.name})
            started[job] = f"{name} {GROUPS[i]}"
        for job in as_completed(started):
            outcome, name = job.result(), started[job]
            records += outcome.records
            status[name] = outcome.status
            print(f"{name}: {outcome.status}, {len(outcome.records)} cases", flush=True)
            compare(records)
            peers = {"blksprs": machine.version("blksprs")}
            write_json(path, {"machine": where, "peers": peers, "status": status, "results": records})
    print(f"written: {path}")
    for r in records:
        print(*(r[k] for k in ("contender", "kind", "heads", "size", "block", "density", "dim", "direction")), shown(r))


def shown(record: dict[str, Any]) -> str:
    """A result in words."""
    if "tflops" not in record:
        return str(record["status"])
    ratios = [f"{k} {record[k]:.2f}" for k in ("of_dense", "over_flex") if k in record]
    return " ".join(
        [f"{record['median_ms']:.3f} ms {record['tflops']:.0f} TFLOP/s error {record['error']:.4f}", *ratios]
    )


if __name__ == "__main__":
    main()
