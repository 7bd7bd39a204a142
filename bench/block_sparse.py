"""Times block-sparse softmax and its peers on one GPU: forward, both directions, five layouts.

    python bench/block_sparse.py [--limit SECONDS] [--only CONTENDER ...] [--small]

Products and attention: bench/block_matmul.py.

Contenders: a copy (the ceiling), PyTorch's dense softmax of as many elements, blksprs, onelaunch. Every contender runs
in a process of its own under a time limit, after several that compile its kernels; one that can't be imported is left
out with its reason. The result is bench/results/block-sparse-GPU.json: for every case the median and quartiles of the
time, the bytes that an ideal kernel moves (forward two passes over the blocks, both directions five), the fraction of
this run's copy ceiling, and the error of the first head against float64.
"""

from __future__ import annotations

import argparse
import importlib
import re
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import machine
from onelaunch.sparse import BlockLayout, random
from process import RESULTS, emit, run_worker, write_json

SCRIPT = "block_sparse.py"
CONTENDERS = ("copy", "dense", "blksprs", "onelaunch")
#: Cycles of the device before queued runs, about 10 ms.
WAIT = 20_000_000
#: Processes that compile at the same time.
PARTS = 10
#: Heads (or batch times heads), size, block, density: random, with a full diagonal.
LAYOUTS = [(32, 4096, 64, 0.25), (32, 4096, 64, 0.1), (64, 4096, 32, 0.1), (8, 16384, 64, 0.1), (8, 16384, 128, 0.05)]


@dataclass(frozen=True)
class Case:
    """What is timed: direction forward or both."""

    direction: str
    dtype: str
    heads: int
    size: int
    block: int
    density: float

    def layout(self) -> BlockLayout:
        return random(self.size // self.block, block=self.block, density=self.density, heads=self.heads)

    def ideal(self, blocks: int) -> int:
        """Bytes that must move."""
        array = blocks * self.block**2 * (4 if self.dtype == "float32" else 2)
        return array * (2 if self.direction == "forward" else 5)


def cases(name: str, small: bool) -> list[Case]:
    """All of a contender; ``small`` is a quick trial of the script. bf16 for onelaunch alone: blksprs takes f32."""
    layouts = [(2, 512, 32, 0.25)] if small else LAYOUTS
    if name == "copy":
        return [Case("forward", "float32", *layout) for layout in layouts[:1]]
    dtypes = ("float32", "bfloat16") if name == "onelaunch" else ("float32",)
    return [
        Case(direction, dtype, *layout) for dtype in dtypes for layout in layouts for direction in ("forward", "both")
    ]


def contender(name: str, layout: BlockLayout) -> Callable[[Any], Any]:
    """The contender's function of values (nnz, block, block); raises what its import raises."""
    import torch

    if name == "dense":
        width = max(1, layout.nnz // (layout.planes * layout.rows)) * layout.block
        return lambda x: torch.softmax(x.reshape(-1)[: x.numel() // width * width].reshape(-1, width), -1)
    if name == "blksprs":
        softmax = importlib.import_module("blksprs.ops.softmax").softmax
        wrap = importlib.import_module("blksprs.utils.blksprs_tensor").BlksprsTensor.wrap
        mask, cache = torch.from_numpy(layout.mask.copy()).to("cuda"), {}  # type: ignore[var-annotated]
        return lambda x: softmax(wrap(x), mask, layout.block, layout_cache=cache)
    ours = importlib.import_module("onelaunch.torch.block_sparse")
    return lambda x: ours.softmax(x, layout)


def measure(run: Callable[[], Any], seconds: float = 0.2) -> dict[str, float]:
    """Milliseconds by device events, at least 10 runs, and the host's microseconds a call.

    Runs are queued behind a wait of the device, as in a training step, so that the host is ahead. The arrays are much
    larger than the cache.
    """
    import torch

    for _ in range(5):
        run()
    torch.cuda.synchronize()
    times: list[float] = []
    host = []
    while len(times) < 10 or (sum(times) < seconds * 1e3 and len(times) < 300):
        torch.cuda._sleep(WAIT)
        begin = time.perf_counter()
        pairs = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(10)]
        for start, stop in pairs:
            start.record()
            run()
            stop.record()
        host.append((time.perf_counter() - begin) * 1e5)
        torch.cuda.synchronize()
        times += [start.elapsed_time(stop) for start, stop in pairs]
    low, _, high = statistics.quantiles(times, n=4)
    median = statistics.median(times)
    return {"median_ms": median, "low_ms": low, "high_ms": high, "runs": len(times), "host_us": statistics.median(host)}


def prepare(name: str, case: Case, layout: BlockLayout, x: Any) -> Callable[[], Any]:
    """The timed call."""
    import torch

    if name == "copy":
        out = torch.empty_like(x)
        return lambda: out.copy_(x)
    function = contender(name, layout)
    if case.direction == "forward":

        def forward() -> Any:
            with torch.no_grad():
                return function(x)

        return forward
    leaf = x.requires_grad_()
    up = torch.randn_like(function(leaf))
    return lambda: torch.autograd.grad(function(leaf), leaf, up)


def error(name: str, case: Case, layout: BlockLayout, x: Any) -> float | None:
    """Largest error, in the first head, of softmax or of its gradient against float64."""
    import torch

    if name in ("copy", "dense"):
        return None
    first = BlockLayout(layout.mask[:1], layout.block)
    function = contender(name, layout)
    leaf, short = (t.detach().requires_grad_() for t in (x, x[: first.nnz].double()))
    found = function(leaf)
    want = first.from_dense(torch.softmax(first.to_dense(short, float("-inf")), -1))
    if case.direction == "both":
        up = torch.sin(torch.arange(x.numel(), device="cuda")).reshape(x.shape)
        (found,) = torch.autograd.grad(found, leaf, up.to(found.dtype))
        (want,) = torch.autograd.grad(want, short, up[: first.nnz].double())
    return float((torch.Tensor(found.detach())[: first.nnz].double() - want.detach()).abs().max())


def values(case: Case, layout: BlockLayout) -> Any:
    """Scores."""
    import torch

    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.empty(layout.nnz, case.block, case.block, dtype=getattr(torch, case.dtype), device="cuda")
    return x.normal_(0, 2, generator=generator)


def compile_kernels(name: str, small: bool, part: int) -> None:
    """Run each PARTS-th case once: Triton keeps on disk what it compiles."""
    for case in cases(name, small)[part::PARTS]:
        layout = case.layout()
        prepare(name, case, layout, values(case, layout))()


def work(name: str, small: bool) -> None:
    """All cases of one contender; each a JSON line."""
    import torch

    for case in cases(name, small):
        layout = case.layout()
        record: dict[str, Any] = {"contender": name, **asdict(case), "ideal_bytes": case.ideal(layout.nnz)}
        record["blocks"] = layout.nnz
        try:
            x = values(case, layout)
            record["error"] = error(name, case, layout, x)
            record |= measure(prepare(name, case, layout, x))
        except Exception as failure:
            record["status"] = f"{type(failure).__name__}: {failure}"[:300]
        torch.cuda.empty_cache()
        emit(record)


def fractions(records: list[dict[str, Any]]) -> None:
    """Each record's share of the copy ceiling: the best rate, read and written, of the copies of this run."""
    rates = []
    for r in records:
        if r["contender"] == "copy" and "median_ms" in r:
            array = r["blocks"] * r["block"] ** 2 * (4 if r["dtype"] == "float32" else 2)
            rates.append(2 * array / r["median_ms"])
    for record in records:
        if rates and "median_ms" in record and record["contender"] != "copy":
            record["of_copy"] = record["ideal_bytes"] / record["median_ms"] / max(rates)


def main() -> None:
    """Supervise the workers, or be one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each contender")
    parser.add_argument("--only", nargs="*", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--worker", choices=CONTENDERS)
    parser.add_argument("--part", type=int)
    options = parser.parse_args()
    if options.part is not None:
        compile_kernels(options.worker, options.small, options.part)
    elif options.worker:
        work(options.worker, options.small)
    else:
        supervise(options)


def supervise(options: argparse.Namespace) -> None:
    """All contenders, one after the other; what is known is written after each."""
    where = machine.describe()
    if where["gpu"] == "none":
        sys.exit("bench/block_sparse.py needs a GPU")
    flags = ["--small"] if options.small else []
    jobs = [(n, str(part)) for n in options.only if n in ("blksprs", "onelaunch") for part in range(PARTS)]
    with ThreadPoolExecutor(2 * PARTS) as pool:
        list(pool.map(lambda j: run_worker(SCRIPT, ["--worker", j[0], "--part", j[1], *flags], options.limit), jobs))
    records: list[dict[str, Any]] = []
    status: dict[str, str] = {}
    slug = re.sub(r"[^a-z0-9]+", "-", str(where["gpu"]).lower()).strip("-")
    path = RESULTS / f"block-sparse-{slug}.json"
    for name in options.only:
        outcome = run_worker(SCRIPT, ["--worker", name, *flags], options.limit)
        records += outcome.records
        status[name] = outcome.status
        print(f"{name}: {outcome.status}, {len(outcome.records)} cases", flush=True)
        fractions(records)
        peers = {"blksprs": machine.version("blksprs")}
        write_json(path, {"machine": where, "peers": peers, "status": status, "results": records})
    print(f"written: {path}")
    for r in records:
        shown = (
            f"{r['of_copy']:.2f} of a copy, {r['median_ms']:.3f} ms, host {r['host_us']:.0f} us"
            if "of_copy" in r
            else r.get("status", "")
        )
        case = (r["heads"], r["size"], r["block"], r["density"])
        print(r["contender"], r["direction"], r["dtype"], *case, shown, f"error {r['error']}" if r.get("error") else "")


if __name__ == "__main__":
    main()
