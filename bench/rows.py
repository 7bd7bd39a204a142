"""Times the row kernels and their peers on one GPU: softmax and cross-entropy, forward, both directions, peak memory.

    python bench/rows.py [--limit SECONDS] [--only CONTENDER ...] [--small]

Every contender runs in a process of its own under a time limit; one that can't be imported is left out with its reason.
The result is bench/results/rows-GPU.json: for every case the median and quartiles of the time, the bytes that an ideal
kernel moves, the fraction of this run's copy ceiling, extra peak memory, and the error against float64 on a few rows.
"""

from __future__ import annotations

import argparse
import importlib
import re
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import machine
from process import RESULTS, emit, run_worker, write_json

CONTENDERS = ("copy", "torch", "compile", "liger", "quack", "onelaunch", "onelaunch-inplace")
SOFTMAX = [("float32", n) for n in (256, 1024, 4096, 16384, 65536, 131072, 262144)]
SOFTMAX += [("bfloat16", n) for _, n in SOFTMAX]
ENTROPY = [(8192, 32000), (8192, 128256), (4096, 151936), (4096, 256000)]
#: Elements of a softmax case.
ELEMENTS = 2**28
IGNORED = 7  # one row in so many


@dataclass(frozen=True)
class Case:
    """What is timed: kind softmax or cross_entropy; direction forward, both or none (forward without gradient)."""

    kind: str
    direction: str
    dtype: str
    rows: int
    columns: int

    def ideal(self) -> int:
        """Bytes that must move: one read and one write of the logits; softmax backward reads two and writes one."""
        array = self.rows * self.columns * (4 if self.dtype == "float32" else 2)
        if self.kind == "softmax":
            return array * (2 if self.direction == "forward" else 5)
        return array * (1 if self.direction == "none" else 2)


def cases(small: bool) -> list[Case]:
    """All of them; ``small`` is a quick trial of the script."""
    elements = 2**16 if small else ELEMENTS
    found = [
        Case("softmax", direction, dtype, max(1, elements // n), n)
        for dtype, n in (SOFTMAX[:2] if small else SOFTMAX)
        for direction in ("forward", "both")
    ]
    shapes = [(16, 1000)] if small else ENTROPY
    return found + [Case("cross_entropy", d, "bfloat16", r, v) for r, v in shapes for d in ("none", "both")]


# --- contenders: functions of (x, target) ------------------------------------------------------------------


def contender(name: str, kind: str) -> Callable[..., Any]:
    """The contender's softmax(x) or cross_entropy(x, target), which raises what its import raises."""
    import torch
    import torch.nn.functional as F

    if name in ("torch", "compile"):
        softmax: Callable[..., Any] = lambda x: torch.softmax(x, -1)  # noqa: E731
        loss: Callable[..., Any] = F.cross_entropy
        if name == "compile":
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


def measure(setup: Callable[[], Any], run: Callable[[Any], Any], flush: Any, seconds: float = 1.0) -> dict[str, float]:
    """Milliseconds by device events, set up and the cache emptied before each run; at least 10 runs."""
    import torch

    for _ in range(3):
        run(setup())
    torch.cuda.synchronize()
    times: list[float] = []
    while len(times) < 10 or (sum(times) < seconds * 1e3 and len(times) < 300):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        x = setup()
        flush.zero_()
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


def prepare(name: str, case: Case, x: Any, target: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """What gives the timed function its logits, and that function."""
    import torch

    if name == "copy":
        out = torch.empty_like(x)
        return lambda: x, out.copy_
    function = contender(name, case.kind)
    arguments = (target,) if case.kind == "cross_entropy" else ()
    if case.direction != "both":

        def forward(x: Any) -> Any:
            with torch.no_grad():
                return function(x, *arguments)

        return lambda: x, forward
    leaf = x.requires_grad_()
    up = torch.randn_like(leaf) if case.kind == "softmax" else None

    def both(logits: Any) -> Any:
        return torch.autograd.grad(function(logits, *arguments), logits, up)

    # Contenders that overwrite their logits get a copy, which is no leaf, outside the timing.
    inplace = name in ("liger", "onelaunch-inplace") and case.kind == "cross_entropy"
    return (lambda: leaf * 1) if inplace else (lambda: leaf), both


def error(name: str, case: Case, x: Any, target: Any) -> float | None:
    """Largest error of the loss, or of softmax, on a few rows, against float64 (forward only)."""
    import torch

    if name == "copy" or case.direction == "both":
        return None
    function = contender(name, case.kind)
    wide, few = x[:64].double(), x[:64].clone()
    with torch.no_grad():
        if case.kind == "softmax":
            return float((function(few).double() - torch.softmax(wide, -1)).abs().max())
        return abs(float(function(few, target[:64])) - float(torch.nn.functional.cross_entropy(wide, target[:64])))


def one(name: str, case: Case, flush: Any) -> dict[str, Any]:
    """Error, peak memory and times of a contender on a case."""
    import torch

    x, target = arrays(case)
    record: dict[str, Any] = {"error": error(name, case, x, target)}
    setup, run = prepare(name, case, x, target)
    run(setup())
    logits = setup()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run(logits)
    torch.cuda.synchronize()
    record["extra_bytes"] = torch.cuda.max_memory_allocated() - before
    del logits
    return record | measure(setup, run, flush)


def work(name: str, small: bool) -> None:
    """All cases of one contender; each a JSON line."""
    import torch

    flush = torch.empty(2**28, dtype=torch.int8, device="cuda")
    for case in cases(small):
        record: dict[str, Any] = {"contender": name, **asdict(case), "ideal_bytes": case.ideal()}
        try:
            record |= one(name, case, flush)
        except Exception as failure:
            record["status"] = f"{type(failure).__name__}: {failure}"[:300]
        torch.cuda.empty_cache()
        emit(record)


def fractions(records: list[dict[str, Any]]) -> None:
    """Each record's share of the copy ceiling: the best rate, read and written, of the copies of this run."""
    rates = [
        2 * r["rows"] * r["columns"] * (4 if r["dtype"] == "float32" else 2) / r["median_ms"]
        for r in records
        if r["contender"] == "copy" and "median_ms" in r
    ]
    for record in records:
        if rates and "median_ms" in record and record["contender"] != "copy":
            record["of_copy"] = record["ideal_bytes"] / record["median_ms"] / max(rates)


def main() -> None:
    """Supervise the workers, or be one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each contender")
    parser.add_argument("--only", nargs="*", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--worker", choices=CONTENDERS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.small)
        return
    where = machine.describe()
    if where["gpu"] == "none":
        sys.exit("bench/rows.py needs a GPU")
    extra = {name: machine.version(name) for name in ("liger-kernel", "quack-kernels")}
    records: list[dict[str, Any]] = []
    status: dict[str, str] = {}
    for name in options.only:
        arguments = ["--worker", name, *(["--small"] if options.small else [])]
        outcome = run_worker("rows.py", arguments, options.limit)
        records += outcome.records
        status[name] = outcome.status
        print(f"{name}: {outcome.status}, {len(outcome.records)} cases", flush=True)
    fractions(records)
    slug = re.sub(r"[^a-z0-9]+", "-", str(where["gpu"]).lower()).strip("-")
    path = RESULTS / f"rows-{slug}.json"
    write_json(path, {"machine": where, "peers": extra, "status": status, "results": records})
    print(f"written: {path}")
    for record in records:
        shown = f"{record['of_copy']:.2f}" if "of_copy" in record else record.get("status", "")
        print(record["contender"], record["kind"], record["direction"], record["dtype"], record["columns"], shown)


if __name__ == "__main__":
    main()
