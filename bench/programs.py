"""Every program of tests/programs through onelaunch: launches, refusals, agreement with JAX, and on a GPU the times.

    python bench/programs.py [--small] [--only NAME ...] [--jobs N] [--limit SECONDS] [--out FOLDER]

`--small` (the default without a GPU) runs the generated kernels in Triton's interpreter at the programs' tiny sizes;
without it they run at real size on the GPU. Each program has a process of its own. The records go to
bench/results/programs-small.json or programs-gpu.json; bench/table.py makes docs/coverage.md from them.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from machine import describe, graphics
from process import RESULTS, ROOT, emit, exclusive, load_file, run_worker, write_json

PROGRAMS = ROOT / "tests" / "programs"

# Programs whose path through the loop turns on the last digits (chaos, acceptance, line searches): at real size two
# correct runs part ways, so only structure and types are compared there; every one is compared in full at small size.
CHAOTIC = {
    *("jaxmd309_lj_langevin", "mppi_pendulum_mpc", "lib_jaxscipy_bfgs", "notion_ode_rk4_scan"),
    *("lib_blackjax597_nuts_normal", "lib_blackjax_hmc_smc62", "lib_numpyro204_bnn_hmc", "lib_qe1022_var_nuts_f64"),
    *("bartz136_gibbs_gamma", "jax29499_gp_random_walk", "pyprobml894_gibbs_ising", "lib_purejaxrl_ppo"),
    *("lib_optax1298_lbfgs", "jax24411_tiny_gpt_decode", "lib_gymnax_cartpole_rollout", "rl_cartpole_ppo_pure"),
    *("jax5006_neural_ode_train", "jumpproc429_gillespie_vmap", "lib_mctx107_search", "lib_dynamax_hmm_sample_viterbi"),
    *("jax4472_mlp_sgd_steps", "lib_optax319_adam_scan", "lib_flax_gru_nnx_train", "snn_lif_surrogate_train"),
}

# Results that are not unique: the signs of eigenvectors steer the search. Only structure and types are compared.
AMBIGUOUS = {"lib_evosax_cmaes"}
# Equinox checks errors by a callback to the host unless told to mark them as NaN; both contenders are told so.
SETTINGS = {"EQX_ON_ERROR": "nan"}
# XLA is not run where it would launch more kernels than this: that takes minutes.
MOST_LAUNCHES = 5_000_000


def names() -> list[str]:
    """All programs, by file name."""
    return sorted(path.stem for path in PROGRAMS.glob("*.py"))


def library(name: str) -> str | None:
    """The module that a `lib_…` program imports and this environment lacks (None: it can run)."""
    source = (PROGRAMS / f"{name}.py").read_text()
    words = [line.split()[1].split(".")[0] for line in source.splitlines() if line.startswith(("import ", "from "))]
    return next((word for word in words if importlib.util.find_spec(word) is None), None)


def check(name: str, small: bool) -> dict[str, Any]:
    """One program in this process: how it was compiled, whether it agrees with jax.jit, and the times on a GPU."""
    import jax

    import onelaunch
    from agree import compare
    from onelaunch import build
    from onelaunch.launch.jax import device_target

    module = load_file(PROGRAMS / f"{name}.py")
    fn, args = module.make_small() if small else module.make()
    record: dict[str, Any] = {"case": name, "size": "small" if small else "real", "x64": jax.config.jax_enable_x64}
    start = time.perf_counter()
    # At small size the kernel itself is tested, also where the cost estimate would leave the program to XLA.
    fused = onelaunch.fuse(fn, fallback="error" if small else "xla")
    low = fused.lower(*args)
    record |= {"lower_s": time.perf_counter() - start, "launches": low.launches}
    record["refusals"] = [{"stage": r.stage, "what": r.what, "why": r.why, "fix": r.fix} for r in low.refusals]
    if low.launches and not small:
        for kernel in low.kernels:  # one of all, or those of the parts that XLA does not keep
            build.compile(kernel, device_target())
        record["compile_s"] = time.perf_counter() - start
    emit(record)
    with exclusive():
        got = jax.block_until_ready(fused(*args))
    agreement = compare(got, reference(fn, args))
    loose = name in AMBIGUOUS or (not small and name in CHAOTIC)
    record |= {"problems": list(agreement.problems), "worst": agreement.worst, "compared": "types" if loose else "full"}
    if loose:
        record["problems"] = [p for p in agreement.problems if "instead of" in p]
    emit(record)
    return record if small else record | timings(fn, fused, args, emit_as=record)


def reference(fn: Any, args: tuple[Any, ...]) -> Any:
    """What jax.jit gives on the CPU (XLA on a GPU would take minutes for some)."""
    import jax

    cpu = jax.local_devices(backend="cpu")[0]
    with jax.default_device(cpu):
        return jax.jit(fn)(*jax.device_put(args, cpu))


def timings(fn: Any, fused: Any, args: tuple[Any, ...], emit_as: dict[str, Any]) -> dict[str, Any]:
    """Times of both on this device, ours first, and the launches under XLA."""
    import jax

    import onelaunch
    from measure import blocked_ms
    from onelaunch.report.hlo import count_launches

    with exclusive():
        found: dict[str, Any] = {"ours": blocked_ms(partial(fused, *args), budget_s=1.0, most=10)}
    emit(emit_as | found)
    compiled = jax.jit(fn).lower(*args).compile()
    launches = count_launches(compiled.as_text())
    found |= {"xla_launches": str(launches)}
    emit(emit_as | found)
    if launches.count <= MOST_LAUNCHES:
        with exclusive():
            found["xla"] = blocked_ms(partial(compiled, *args), budget_s=1.0, most=10)
        emit(emit_as | found)
    if {r["stage"] for r in emit_as["refusals"]} == {"cost"} and not emit_as["launches"]:
        one = onelaunch.fuse(fn, fallback="error")  # what the cost estimate would not have
        with exclusive():
            found["kernel"] = blocked_ms(partial(one, *args), budget_s=1.0, most=3)
    return found


def supervise(name: str, small: bool, limit_s: float) -> dict[str, Any]:
    """Runs one program in a process; its record so far where it was killed or failed."""
    missing = library(name)
    if missing:
        return {"case": name, "size": "small" if small else "real", "status": f"{missing} is not installed"}
    env = SETTINGS | ({"ONELAUNCH_INTERPRET": "1", "JAX_PLATFORMS": "cpu"} if small else {})
    outcome = run_worker("programs.py", ["--one", name, *(["--small"] if small else [])], limit_s, env)
    record = outcome.records[-1] if outcome.records else {"case": name, "size": "small" if small else "real"}
    return record | {"status": outcome.status}


def line(record: dict[str, Any]) -> str:
    """A record as one line for the terminal."""
    problems = record.get("problems")
    verdict = "not compared" if problems is None else "agrees" if not problems else "; ".join(problems)
    times = "".join(f", {who} {record[who]['median_ms']:.3f} ms" for who in ("ours", "xla") if who in record)
    status = "" if record["status"] == "ok" else f" [{record['status']}]"
    launches, refusals = record.get("launches", "?"), len(record.get("refusals", ()))
    return f"{record['case']}: {launches} launch(es), {refusals} refusal(s), {verdict}{times}{status}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="programs (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="programs at once; they take turns on the device (2)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record (bench/results)")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one program")
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    small = options.small or graphics()["gpus"] == 0
    if options.one:
        emit(check(options.one, small))
        return
    chosen = options.only or names()
    unknown = sorted(set(chosen) - set(names()))
    if unknown:
        parser.error(f"no such program: {', '.join(unknown)}")
    path = options.out / ("programs-small.json" if small else "programs-gpu.json")
    records: list[dict[str, Any]] = []
    with tempfile.NamedTemporaryFile() as lock, ThreadPoolExecutor(options.jobs) as pool:
        os.environ["BENCH_LOCK"] = lock.name
        for record in pool.map(lambda name: supervise(name, small, options.limit), chosen):
            print(line(record), flush=True)
            records.append(record)
    one = sum(r.get("launches") == 1 and not r.get("refusals") for r in records)
    print(f"{one} of {len(records)} in one launch")
    if not options.only:
        write_json(path, {"machine": describe(), "results": records})
        print(f"written to {os.path.relpath(path)}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
