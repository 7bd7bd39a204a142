"""Plans of every program of tests/programs timed one by one on a GPU: what the choice among plans is judged by.

    python bench/sweep_plans.py [--only NAME ...] [--jobs N] [--limit SECONDS] [--budget SECONDS] [--out FOLDER]

Each program is made one kernel under the plan that onelaunch chooses by itself ("chosen") and under others of fixed
limits: dims unrolled up to 8, 4 or 2, warps, members of an ensemble a program. `u4w8` unrolls up to 4 and has 8 warps;
`l32` puts 32 members in a program. The lines go to plans-gpu.jsonl.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from process import RESULTS, emit, exclusive, load_file, run_worker
from programs import PROGRAMS, SETTINGS, library, names

#: (unroll_dim, warps), the most telling first.
SPREADS = ((8, 1), (2, 4), (8, 4), (2, 1), (4, 1), (2, 8), (4, 4), (8, 8), (2, 16), (2, 2), (8, 2), (4, 8))
#: (members a program, warps) of an ensemble.
MEMBERS = ((1, 1), (1, 4), (0, 8), (32, 1), (4, 1), (16, 1), (64, 2), (128, 4), (64, 1), (2, 1), (8, 1), (256, 8))
#: A program is not timed again where one call takes longer than this, and left where it takes longer than that.
LONG_S, TOO_LONG_S = 0.4, 3.0


def variants(chosen: Any) -> Iterator[tuple[str, Any]]:
    """Limits by name, beside those that were chosen (a schedule.plan.Limits)."""
    spreads = list(SPREADS)
    if chosen.lanes:
        plain = dataclasses.replace(chosen, lanes=1, unroll_dim=8, unroll_value=64, held=1 << 20)
        for lanes, warps in MEMBERS if chosen.lanes > 1 else MEMBERS[2:8]:
            yield f"l{lanes}w{warps}", dataclasses.replace(chosen, lanes=lanes, num_warps=warps)
        chosen, spreads = plain, spreads[:8]
    for dim, warps in spreads:
        name = f"l{chosen.lanes}" if chosen.lanes else ""
        yield f"{name}u{dim}w{warps}", dataclasses.replace(chosen, unroll_dim=dim, num_warps=warps)


def sweep(name: str, first: int, budget_s: float) -> None:
    """One program in this process, from variant number ``first`` on; emits a record a variant."""
    import jax

    from onelaunch import compat
    from onelaunch.pipeline import compile_graph
    from onelaunch.primitive import Program
    from onelaunch.rewrite import rewrite
    from onelaunch.single import Fused, _estimate
    from onelaunch.trace import readable, to_checked_graph

    end = time.monotonic() + budget_s
    fn, args = load_file(PROGRAMS / f"{name}.py").make()
    traced = jax.jit(fn).trace(*args)
    closed = traced.jaxpr
    taken = readable(closed)
    made, checks = to_checked_graph(closed, name, taken)
    graph = rewrite(made)
    leaves = [*compat.closed_over(traced), *jax.tree.leaves(args)]
    start = time.perf_counter()
    plan, kernel = compile_graph(graph)
    found = {"chosen_s": time.perf_counter() - start}
    wanted = None
    seen = set()
    for number, (variant, limits) in enumerate([("chosen", None), *variants(plan.limits)]):
        record = {"case": name, "variant": variant, "number": number, **found}
        if number:
            if number >= first:
                emit(record | {"state": "placing"})
            plan, kernel = compile_graph(graph, limits)
        what = (kernel.source.partition("import")[2], kernel.num_warps, kernel.grid)
        if (what in seen or number < first) or time.monotonic() > end:
            continue
        seen.add(what)
        record |= {"warps": kernel.num_warps, "grid": kernel.grid[0], "estimate_ms": plan.estimate_us / 1e3}
        record |= {"limits": dataclasses.asdict(plan.limits), "code": len(kernel.source)}
        emit(record | {"state": "building"})
        program = Program(closed, name, False, True)
        consts = tuple(c for _, c in graph.consts)
        vars(program)["fused"] = Fused(kernel, plan, consts, (), _estimate(closed), plan.estimate_us, checks, taken)
        record, outs = run(program, kernel, leaves, record)
        if wanted is None:
            wanted = outs
        elif outs is not None:
            record["worst"] = difference(outs, wanted)
        emit(record)
        if record.get("ms", 0.0) > TOO_LONG_S * 1e3:
            return


def run(program: Any, kernel: Any, leaves: list[Any], record: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """A variant's record with what it takes, and its results (None where it does not build)."""
    import jax

    from measure import blocked_ms
    from onelaunch import build
    from onelaunch.errors import BuildError
    from onelaunch.launch.jax import device_target

    start = time.perf_counter()
    try:
        built = build.compile(kernel, device_target())
        build.check_limits(kernel.name, built)
    except BuildError as error:
        return record | {"error": str(error)[:200], "compile_s": time.perf_counter() - start}, None
    r = built.resources
    record |= {"compile_s": time.perf_counter() - start, "registers": r.registers, "spilled": r.spilled}
    record |= {"shared": r.shared}
    emit(record | {"state": "running"})
    call: Any = partial(jax.jit(program.bind).lower(*leaves).compile(), *leaves)
    with exclusive():
        begin = time.perf_counter()
        outs = jax.block_until_ready(call())
        once = time.perf_counter() - begin
        if once < LONG_S:
            times = blocked_ms(call, budget_s=0.1, most=7)
            return record | {"ms": times["median_ms"], "least_ms": times["least_ms"]}, outs
    return record | {"ms": once * 1e3}, outs


def difference(outs: Any, wanted: Any) -> float:
    """The largest relative difference of results (infinite where structure, integers or NaN differ)."""
    from agree import compare

    found = compare(outs, wanted)
    return max(found.worst, 0.0 if not found.problems else 1.0)


def supervise(name: str, limit_s: float, budget_s: float, out: Path) -> list[dict[str, Any]]:
    """Runs a program's variants in a process; in a new one, behind the variant that ended it, where it died."""
    if missing := library(name):
        return [{"case": name, "error": f"{missing} is not installed"}]
    records: dict[int, dict[str, Any]] = {}
    end, first = time.monotonic() + limit_s, 0
    while time.monotonic() < end and first < 40:
        args = ["--one", name, "--first", str(first), "--budget", str(budget_s)]
        outcome = run_worker("sweep_plans.py", args, end - time.monotonic(), SETTINGS)
        for record in outcome.records:
            if record:
                records[record["number"]] = record
        if outcome.status == "ok":
            break
        last = max(records, default=0)
        records[last] = (
            {"case": name, "variant": "?", "number": last} | records.get(last, {}) | {"error": outcome.status}
        )
        if last < first:
            break
        first = last + 1
    found = [r for r in records.values() if "ms" in r or "error" in r]
    with out.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in found)
    return found


def line(records: list[dict[str, Any]]) -> str:
    """A program's variants, the fastest first."""
    timed = sorted((r for r in records if "ms" in r), key=lambda r: r["ms"])
    shown = [
        f"{r['variant']} {r['ms']:.3g} ({r['estimate_ms']:.3g}; {r['registers']}r"
        + (f" {r['spilled']}s" if r["spilled"] else "")
        + f" {r['compile_s']:.0f}s)"
        + (f" DIFFERS {r['worst']:.0e}" if r.get("worst", 0.0) > 2e-3 else "")
        for r in timed
    ]
    failed = [f"{r.get('variant')} [{r['error'][:60]}]" for r in records if "error" in r]
    return f"{records[0]['case'] if records else '?'}: " + "; ".join([*shown, *failed])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", metavar="NAME", help="programs (default: all)")
    parser.add_argument("--jobs", type=int, default=14, help="programs at once; they take turns on the device (14)")
    parser.add_argument("--limit", type=float, default=110.0, help="seconds for one program (110)")
    parser.add_argument("--budget", type=float, default=50.0, help="seconds in which a program starts variants (50)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record (bench/results)")
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        sweep(options.one, options.first, options.budget)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "plans-gpu.jsonl"
    path.unlink(missing_ok=True)
    with tempfile.NamedTemporaryFile() as lock, ThreadPoolExecutor(options.jobs) as pool:
        os.environ["BENCH_LOCK"] = lock.name
        work = partial(supervise, limit_s=options.limit, budget_s=options.budget, out=path)
        for records in pool.map(work, options.only or names()):
            print(line(records), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
