"""Times the row kernels and their peers on one GPU: softmax and cross-entropy, each direction, peak memory.

    python bench/rows.py [--limit SECONDS] [--only CONTENDER ...] [--small]

Every contender runs in processes of its own under a time limit, all at once (they compile side by side), each timed
while the others wait; one that can't be imported, or fails at a case, is recorded with its reason. The result is
bench/results/rows-GPU.json, written as contenders end: for every case the median and quartiles of the time, the bytes
that an ideal kernel moves, the fraction of this run's copy ceiling, extra peak memory, and the error against float64 on
a few rows. bench/table.py makes the tables and the plot of docs/rows.md from it.
"""

from __future__ import annotations

import argparse
import importlib
import re
import statistics
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from typing import Any

import machine
from process import RESULTS, emit, exclusive, run_worker, write_json

#: Each with the processes that its cases are dealt to: of compilers that take seconds a case, several.
CONTENDERS = {
    **{"copy": 1, "torch": 1, "compile": 4, "liger": 1, "quack": 4, "quack-fused": 1},
    **{"onelaunch": 1, "onelaunch-inplace": 1},
}
COLUMNS = (256, 1024, 4096, 16384, 65536, 131072, 262144)
DTYPES = {"float32": 4, "bfloat16": 2}
ENTROPY = [(8192, 32000), (8192, 128256), (4096, 151936), (4096, 256000)]
#: Bytes of a softmax case's array.
SIZE = 2**30
IGNORED = 7  # one row in so many
#: Of the device's sleep before a run, about two milliseconds.
CYCLES = 4_000_000
#: Passes over an array of logits: read or written, at least.
PASSES = {
    ("softmax", "forward"): 2,
    ("softmax", "backward"): 3,
    ("softmax", "both"): 5,
    ("cross_entropy", "none"): 1,
    ("cross_entropy", "both"): 2,
}


@dataclass(frozen=True)
class Case:
    """What is timed; directions: forward, backward, both, or none (forward without gradient)."""

    kind: str
    direction: str
    dtype: str
    rows: int
    columns: int

    def ideal(self) -> int:
        """Bytes that must move."""
        return PASSES[self.kind, self.direction] * self.rows * self.columns * DTYPES[self.dtype]


def cases(name: str, small: bool) -> list[Case]:
    """Those of a contender; ``small`` is a quick trial of the script."""
    size = 2**16 if small else SIZE
    shapes = [(16, 1000)] if small else ENTROPY
    found = [
        Case("cross_entropy", d, "bfloat16", r, v)
        for r, v in shapes
        for d in ("both", "none")
        if not (d == "none" and name in ("quack-fused", "onelaunch-inplace"))
    ]
    if name in ("quack-fused", "onelaunch-inplace"):
        return found
    return found + [
        Case("softmax", direction, dtype, max(1, size // DTYPES[dtype] // n), n)
        for n in (COLUMNS[:2] if small else COLUMNS)
        for dtype in DTYPES
        for direction in (("forward",) if name == "copy" else ("forward", "backward", "both"))
    ]


# --- contenders: functions of (x, target) ------------------------------------------------------------------


def contender(name: str, kind: str) -> Callable[..., Any]:
    """The contender's softmax(x) or cross_entropy(x, target), which raises what its import raises."""
    import torch
    import torch.nn.functional as F

    if name in ("torch", "compile"):
        softmax: Callable[..., Any] = lambda x: torch.softmax(x, -1)  # noqa: E731
        loss: Callable[..., Any] = F.cross_entropy
        if name == "compile":
            importlib.import_module("torch._dynamo").reset()  # no shape is compiled as a variant of another
            # Backward alone is run many times.
            importlib.import_module("torch._functorch.config").donated_buffer = False
            softmax = torch.compile(softmax)
            loss = torch.compile(lambda x, t: F.cross_entropy(x.float(), t))
        return softmax if kind == "softmax" else loss
    if name == "liger":
        functional = importlib.import_module("liger_kernel.transformers.functional")
        return functional.liger_softmax if kind == "softmax" else functional.liger_cross_entropy
    if name == "quack":
        if kind == "softmax":
            return importlib.import_module("quack.softmax").softmax
        entropy = importlib.import_module("quack.cross_entropy").cross_entropy
        return lambda x, t: entropy(x, t, ignore_index=-100, reduction="mean")
    ours = importlib.import_module("onelaunch.torch")
    if kind == "softmax":
        return lambda x: ours.softmax(x, -1)
    return lambda x, t: ours.cross_entropy(x, t, inplace=name.endswith("inplace"))


# --- measuring ---------------------------------------------------------------------------------------------


def measure(setup: Callable[[], Any], run: Callable[[Any], Any], flush: Any, seconds: float = 0.1) -> dict[str, float]:
    """Milliseconds by device events, set up and the cache emptied before each run; at least 10 runs.

    The device sleeps until a run is queued, as it would have other work in a training loop.
    """
    import torch

    for _ in range(2):
        run(setup())
    torch.cuda.synchronize()
    times: list[float] = []
    while len(times) < 10 or (sum(times) < seconds * 1e3 and len(times) < 100):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        x = setup()
        flush.zero_()
        torch.cuda._sleep(CYCLES)
        start.record()
        run(x)
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    low, _, high = statistics.quantiles(times, n=4)
    return {"median_ms": statistics.median(times), "low_ms": low, "high_ms": high, "runs": len(times)}


def arrays(case: Case) -> tuple[Any, Any]:
    """Logits and labels."""
    import torch

    generator = torch.Generator("cuda").manual_seed(0)
    kind = getattr(torch, case.dtype)
    x = torch.empty(case.rows, case.columns, dtype=kind, device="cuda").normal_(0, 2, generator=generator)
    target = torch.randint(0, case.columns, (case.rows,), device="cuda", generator=generator)
    target[::IGNORED] = -100
    return x, target


Prepared = tuple[Callable[[], Any], Callable[[Any], Any]]


def prepare(name: str, case: Case, x: Any, target: Any) -> Prepared:
    """What gives the timed function its logits, and that function."""
    import torch

    if name == "copy":
        out = torch.empty_like(x)
        return lambda: x, out.copy_
    if name == "quack-fused":
        fused = importlib.import_module("quack.cross_entropy").cross_entropy_fwd
        return lambda: x, lambda x: fused(x, target, return_dx=True)
    function = contender(name, case.kind)
    arguments = (target,) if case.kind == "cross_entropy" else ()
    if case.direction in ("forward", "none"):

        def forward(x: Any) -> Any:
            with torch.no_grad():
                return function(x, *arguments)

        return lambda: x, forward
    leaf = x.requires_grad_()
    up = torch.randn_like(leaf) if case.kind == "softmax" else None
    if case.direction == "backward":
        y = function(leaf, *arguments)
        return lambda: y, lambda y: torch.autograd.grad(y, leaf, up, retain_graph=True)

    def both(logits: Any) -> Any:
        return torch.autograd.grad(function(logits, *arguments), logits, up)

    # Contenders that overwrite their logits get a copy, which is no leaf, outside the timing.
    inplace = name in ("liger", "onelaunch-inplace") and case.kind == "cross_entropy"
    return (lambda: leaf * 1) if inplace else (lambda: leaf), both


def error(name: str, case: Case, x: Any, target: Any) -> float | None:
    """Largest error of the loss, or of softmax, on a few rows, against float64 (forward only)."""
    import torch

    if name == "copy" or case.direction not in ("forward", "none"):
        return None
    function = contender(name, case.kind)
    wide, few = x[:64].double(), x[:64].clone()
    with torch.no_grad():
        if case.kind == "softmax":
            return float((function(few).double() - torch.softmax(wide, -1)).abs().max())
        return abs(float(function(few, target[:64])) - float(torch.nn.functional.cross_entropy(wide, target[:64])))


def one(name: str, case: Case, flush: Any) -> dict[str, Any]:
    """Error, peak memory and times of a contender on a case; it compiles while others are timed."""
    import torch

    with exclusive():
        x, target = arrays(case)
        torch.cuda.synchronize()
    setup, run = prepare(name, case, x, target)
    run(setup())
    torch.cuda.synchronize()
    with exclusive():
        logits = setup()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run(logits)
        torch.cuda.synchronize()
        record: dict[str, Any] = {"extra_bytes": torch.cuda.max_memory_allocated() - before}
        del logits
        record |= measure(setup, run, flush)
    del setup, run
    return record | {"error": None if name == "compile" else error(name, case, x.detach(), target)}


def work(name: str, shard: int, small: bool) -> None:
    """A shard's cases of one contender; each a JSON line."""
    import torch

    flush = torch.empty(2**28, dtype=torch.int8, device="cuda")
    for number, case in enumerate(cases(name, small)):
        if number % CONTENDERS[name] != shard:
            continue
        record: dict[str, Any] = {"contender": name, **asdict(case), "ideal_bytes": case.ideal()}
        try:
            record |= one(name, case, flush)
        except Exception as failure:
            record["status"] = f"{type(failure).__name__}: {failure}"[:300]
        torch.cuda.empty_cache()
        emit(record)


# --- all of them -------------------------------------------------------------------------------------------


def fractions(records: list[dict[str, Any]]) -> float | None:
    """Gives each record its share of the copy ceiling: the best rate of this run's copies, bytes/s read and written."""
    copies = [r for r in records if r["contender"] == "copy" and "median_ms" in r]
    if not copies:
        return None
    rate = max(2 * r["rows"] * r["columns"] * DTYPES[r["dtype"]] / r["median_ms"] for r in copies)
    for record in records:
        if "median_ms" in record and record["contender"] != "copy":
            record["of_copy"] = record["ideal_bytes"] / record["median_ms"] / rate
    return rate * 1e3


def supervise(names: list[str], limit: float, small: bool) -> None:
    """All contenders' processes at once; the file is written anew after each."""
    where = machine.describe()
    if where["gpu"] == "none":
        sys.exit("bench/rows.py needs a GPU")
    peers = {name: machine.version(name) for name in ("liger-kernel", "quack-kernels", "nvidia-cutlass-dsl")}
    slug = re.sub(r"[^a-z0-9]+", "-", str(where["gpu"]).lower()).strip("-")
    path = RESULTS / f"rows-{slug}.json"
    records: list[dict[str, Any]] = []
    status: dict[str, str] = {}
    jobs = [(name, shard) for name in names for shard in range(CONTENDERS[name])]
    with tempfile.NamedTemporaryFile() as lock, ThreadPoolExecutor(len(jobs)) as pool:

        def start(name: str, shard: int) -> Any:
            arguments = ["--worker", name, "--shard", str(shard), *(["--small"] if small else [])]
            return run_worker("rows.py", arguments, limit, {"BENCH_LOCK": lock.name})

        waiting = {pool.submit(start, *job): job for job in jobs}
        for done in as_completed(waiting):
            name, shard = waiting[done]
            outcome = done.result()
            records += outcome.records
            status[f"{name} {shard}"] = outcome.status
            ceiling = fractions(records)
            facts = {"machine": where, "peers": peers, "status": status, "copy_bytes_per_s": ceiling}
            write_json(path, facts | {"results": records})
            print(f"{name} {shard}: {outcome.status}, {len(outcome.records)} cases", flush=True)
    for r in sorted(records, key=lambda r: (r["kind"], r["direction"], r["dtype"], r["columns"], r["contender"])):
        shown = f"{r['of_copy']:.3f} {r['median_ms']:.3f} ms" if "of_copy" in r else r.get("status", "")
        print(r["kind"], r["direction"], r["dtype"], r["columns"], r["contender"], shown)


def main() -> None:
    """Supervise the workers, or be one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=150.0, help="seconds for each process")
    parser.add_argument("--only", nargs="*", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--worker", choices=CONTENDERS)
    parser.add_argument("--shard", type=int, default=0)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.shard, options.small)
    else:
        supervise(options.only, options.limit, options.small)


if __name__ == "__main__":
    main()
