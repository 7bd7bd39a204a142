"""Random programs against ``jax.jit``: the meaning of each program's Graph, and for some the kernel, watched for races.

    python tests/random_check.py --first 0 --count 2000 [--kernels 4]

runs so many programs by number and reports each that differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onelaunch.ir.interpret import run as meaning
from onelaunch.launch import interpreter
from onelaunch.ops.words import raw
from onelaunch.pipeline import compile_graph
from onelaunch.rewrite import rewrite
from onelaunch.trace import to_graph
from races import watched
from random_nests import Case, Fn, case, floats_of

#: XLA's way to round as it is told, and to compile in little time
PLAIN = {"xla_allow_excess_precision": False, "xla_backend_optimization_level": 0}


def by_jax(fn: Fn, args: Sequence[Any]) -> list[np.ndarray]:
    return [raw(y) for y in jax.tree.leaves(jax.jit(fn).lower(*args).compile(PLAIN)(*args))]


def tolerance(jaxpr: Any) -> float:
    """By the coarsest float in a program."""
    text = str(jaxpr)
    return 0.1 if "bf16[" in text else 2e-2 if "f16[" in text else 1e-3 if "f32[" in text else 1e-9


def differs(got: Sequence[Any], want: Sequence[Any], bound: float) -> str:
    """What differs, or nothing."""
    if len(got) != len(want):
        return f"{len(got)} results for {len(want)}"
    for k, (x, y) in enumerate(zip(got, want)):
        if (x.dtype, x.shape) != (y.dtype, y.shape):
            return f"result {k}: {x.dtype}{x.shape} for {y.dtype}{y.shape}"
        if x.dtype.kind in "iub":
            if not np.array_equal(x, y):
                return f"result {k}: {x.ravel()[:5]} for {y.ravel()[:5]}"
            continue
        a, b = x.astype(np.float64), y.astype(np.float64)
        scale = 1 + np.max(np.abs(b[np.isfinite(b)]), initial=0)
        if not np.allclose(a, b, rtol=bound, atol=bound * scale, equal_nan=True):
            return f"result {k}: {a.ravel()[:5]} for {b.ravel()[:5]}"
    return ""


def sensitive(c: Case, want: Sequence[np.ndarray], bound: float) -> bool:
    """Whether JAX's own results hang on the last digits: other arguments within rounding, or op by op, give others."""
    rng = np.random.default_rng(0)
    for _ in range(4):
        moved = list(c.args)
        for k in floats_of(c.args):
            eps = float(jnp.finfo(c.args[k].dtype).eps)
            moved[k] = (c.args[k] * (1 + 4 * eps * rng.uniform(-1, 1, c.args[k].shape))).astype(c.args[k].dtype)
        if differs(by_jax(c.plain, moved), want, bound / 4):
            return True
    with jax.disable_jit():
        steps = [raw(y) for y in jax.tree.leaves(c.plain(*c.args))]
    fast = [raw(y) for y in jax.tree.leaves(jax.jit(c.plain)(*c.args))]
    return bool(differs(steps, want, bound / 4) or differs(fast, want, bound / 4))


def check(source: random.Random, kernel: bool) -> tuple[str, str]:
    """The verdict on a random program ("same", "sensitive" or what differs) and its name."""
    c = case(source)
    with jax.enable_x64(c.x64):
        want = by_jax(c.plain, c.args)
        closed = jax.make_jaxpr(c.fused)(*c.args)
        graph = rewrite(to_graph(closed))
        args = [raw(a) for a in c.args]
        bound = tolerance(closed)
        found = differs(meaning(graph, args), want, bound)
        if not found and kernel:
            inputs = [x for x in (*args, *(v for _, v in graph.consts)) if x.size]
            with watched():
                found = differs(interpreter.run(compile_graph(graph)[1], inputs), want, bound)
            found = found and f"kernel: {found}"
        if found and sensitive(c, want, bound):
            return "sensitive", c.name
        return found or "same", c.name


def one_process(options: argparse.Namespace) -> dict[str, int]:
    """Run programs by number until the time is over; print those that differ. How many had each verdict."""
    verdicts: dict[str, int] = {}
    begun = time.monotonic()
    for k, n in enumerate(range(options.first, options.first + options.count, options.step)):
        start = time.perf_counter()
        if options.seconds and time.monotonic() - begun > options.seconds:
            verdicts["not run"] = len(range(n, options.first + options.count, options.step))
            break
        try:
            verdict, name = check(random.Random(n), n % options.kernels == 0)
        except Exception as error:
            verdict, name = f"{type(error).__name__}: {str(error)[:300]}", ""
        kind = verdict if verdict in ("same", "sensitive") else "different"
        verdicts[kind] = verdicts.get(kind, 0) + 1
        if kind != "same":
            print(f"{n} ({name}, {time.perf_counter() - start:.1f} s): {verdict}", flush=True)
        if k % 100 == 99:
            print(f"up to {n}: {verdicts}", flush=True)
            jax.clear_caches()
    return verdicts


def several(options: argparse.Namespace) -> dict[str, int]:
    """The same by several processes, each with every so manyth program."""
    command = [sys.executable, __file__, "--kernels", str(options.kernels)]
    command += ["--seconds", str(options.seconds), "--step", str(options.processes)]
    running = []
    for k in range(options.processes):
        more = ["--first", str(options.first + k), "--count", str(options.count - k)]
        running.append(subprocess.Popen([*command, *more], stdout=subprocess.PIPE, text=True))
    total: dict[str, int] = {}
    for process in running:
        *found, last = process.communicate()[0].splitlines() or ["{}"]
        print("\n".join(line for line in found if not line.startswith("up to")), flush=True)
        if process.returncode:
            total["processes that ended early"] = total.get("processes that ended early", 0) + 1
            continue
        for kind, count in json.loads(last).items():
            total[kind] = total.get(kind, 0) + count
    return total


def main() -> None:
    """Run programs by number; print those that differ, and at the end the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=2000, help="numbers from the first on")
    parser.add_argument("--step", type=int, default=1, help="every so manyth of them")
    parser.add_argument("--kernels", type=int, default=4, help="one program in so many runs as a kernel, interpreted")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0, help="start no program after so many seconds (0: all run)")
    options = parser.parse_args()
    print(json.dumps(several(options) if options.processes > 1 else one_process(options)))


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
