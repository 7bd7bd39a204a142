"""Measures the examples under XLA (number of steps traced, and static), on the CPU, and through onelaunch.

    python bench/run.py [--only NAME ...] [--limit SECONDS] [--out FOLDER]

Each (benchmark, contender) runs in a process of its own with an empty kernel store, so that the first compilation is
cold and the peak memory its own. Times are medians of calls blocked until ready. The records go to
bench/results/bench-<gpu>.json with the machine and versions; bench/table.py makes the tables and the plot.
Without a GPU only the CPU contender and the offline compilation (for sm_90) are measured.
"""

from __future__ import annotations

import argparse
import re
import time
from functools import partial
from pathlib import Path
from typing import Any

from machine import describe, graphics
from process import RESULTS, Outcome, emit, run_worker, write_json
from suite import BENCHMARKS, COMPILED, CONTENDERS, Case

OTHERS = ("overhead", "compile")


def measure_case(case: Case, contender: str) -> dict[str, Any]:
    """One case under one contender, in this process."""
    import jax

    from measure import blocked_ms, peak_bytes

    use_shorter = contender.startswith("xla") and case.xla_build is not None
    fn, args = case.xla_build() if use_shorter and case.xla_build else case.build()
    record: dict[str, Any] = {"case": case.label, "note": case.xla_note if use_shorter else ""}
    if contender == "ours":
        return record | measure_ours(case, fn, args)
    static = case.static if contender == "xla_static" else ()
    jitted = jax.jit(fn, static_argnums=static)
    start = time.perf_counter()
    jax.block_until_ready(jitted.lower(*args).compile())
    record["compile_s"] = time.perf_counter() - start
    return record | blocked_ms(partial(jitted, *args)) | {"peak_bytes": peak_bytes()}


def measure_ours(case: Case, fn: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Cold compilation, time, kernels on the device, memory and the check of the result."""
    import jax

    import onelaunch
    from measure import blocked_ms, peak_bytes, profile

    gpu = jax.devices()[0].platform == "gpu"
    fused = onelaunch.fuse(fn)
    start = time.perf_counter()
    low = fused.lower(*args)
    lowered = time.perf_counter()
    compiled = low.compile(None if gpu else "cuda:90")
    record: dict[str, Any] = {
        "lower_s": lowered - start,
        "compile_s": time.perf_counter() - start,
        "launches": low.launches,
        "refusals": [str(r) for r in low.refusals],
        "resources": str(compiled.resources),
    }
    if not gpu or case.label in COMPILED:
        return record
    record |= blocked_ms(partial(fused, *args)) | {"peak_bytes": peak_bytes()} | profile(partial(fused, *args))
    return record | (case.check(fused(*args), args) if case.check else {})


def measure_overhead() -> None:
    """What a call costs from Python: microseconds each when 1,000 are queued, and blocked one by one."""
    import jax
    import jax.numpy as jnp

    import onelaunch
    from measure import blocked_ms, queued_us

    x = jnp.float32(1.0)
    calls = {
        "jax.jit, empty": jax.jit(lambda x: x),
        "jax.jit, x + 1": jax.jit(lambda x: x + 1),
        "onelaunch.fuse, x + 1": onelaunch.fuse(lambda x: x + 1),
    }
    for label, fn in calls.items():
        blocked = blocked_ms(partial(fn, x), budget_s=0.5, most=1000)
        emit({"case": label, "contender": "call", "queued_us": queued_us(partial(fn, x)), **blocked})


def work(benchmark: str, contender: str) -> None:
    """The worker: measures the cases of a benchmark that a contender takes part in, smallest first."""
    if benchmark == "overhead":
        return measure_overhead()
    from suite import compile_cases

    cases = compile_cases(benchmark) if benchmark in COMPILED else BENCHMARKS[benchmark]()
    for case in cases:
        if contender in case.contenders:
            emit({"contender": contender} | measure_case(case, contender))
    return None


def jobs(chosen: list[str], gpu: bool) -> list[tuple[str, str]]:
    """The (benchmark, contender) pairs to run."""
    who = CONTENDERS if gpu else ("cpu", "ours")
    pairs = [(name, contender) for name in chosen if name in BENCHMARKS for contender in who]
    pairs = [(n, c) for n, c in pairs if c != "xla_static" or n == "sampler"]
    if "overhead" in chosen:
        pairs.append(("overhead", "call"))
    if "compile" in chosen:
        pairs += [(name, "ours") for name in COMPILED]
    return pairs


def run_job(benchmark: str, contender: str, limit_s: float) -> list[dict[str, Any]]:
    """Runs one worker and prints its records."""
    start = time.perf_counter()
    env = {"JAX_PLATFORMS": "cpu"} if contender == "cpu" else {}
    outcome: Outcome = run_worker("run.py", ["--worker", benchmark, contender], limit_s, env)
    records = [{"benchmark": benchmark, "status": "ok"} | record for record in outcome.records]
    if outcome.status != "ok":
        records.append({"benchmark": benchmark, "contender": contender, "status": outcome.status})
    for record in records:
        print(" ".join(f"{key}={short(value)}" for key, value in record.items() if value not in ("", None)))
    print(f"-- {benchmark} {contender}: {time.perf_counter() - start:.1f} s", flush=True)
    return records


def short(value: object) -> str:
    """A value for the terminal."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> None:
    names = [*BENCHMARKS, *OTHERS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for one process (default 60)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record (bench/results)")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(*options.worker)
        return
    gpu = graphics()["gpus"] != 0
    records = [r for job in jobs(options.only or names, gpu) for r in run_job(*job, options.limit)]
    machine = describe()
    slug = re.sub(r"[^a-z0-9]+", "-", str(machine["gpu"] if gpu else "cpu").lower()).strip("-")
    path = options.out / f"bench-{slug}{'-partial' if options.only else ''}.json"
    write_json(path, {"machine": machine, "results": records})
    print(f"written to {path}")


if __name__ == "__main__":
    main()
