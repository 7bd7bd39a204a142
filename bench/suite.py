"""What is measured: for each benchmark its cases (a size each), how XLA's second form is made, and the check."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from process import ROOT, load_file

Built = tuple[Callable[..., Any], tuple[Any, ...]]
Check = Callable[[Any, tuple[Any, ...]], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """One size of a benchmark. `static`: arguments that XLA's "n static" form gets as constants."""

    label: str
    build: Callable[[], Built]
    contenders: tuple[str, ...] = ("xla", "cpu", "ours")
    static: tuple[int, ...] = ()
    check: Check | None = None
    xla_build: Callable[[], Built] | None = None
    xla_note: str = ""


def example(name: str) -> Any:
    """An example's module."""
    return load_file(ROOT / "examples" / f"{name}.py")


def program(name: str) -> Any:
    """The module of one of tests/programs."""
    return load_file(ROOT / "tests" / "programs" / f"{name}.py")


def on_cpu(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """What jax.jit gives on the host's processor."""
    cpu = jax.devices("cpu")[0]
    with jax.default_device(cpu):
        return jax.jit(fn)(*jax.device_put(args, cpu))


def check_sampler(result: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Keys equal and largest difference of the values from JAX on the CPU, for 64 chains spread over the batch."""
    weights, keys, n = args
    picked = np.linspace(0, len(keys) - 1, min(len(keys), 64)).astype(int)
    want_keys, want = on_cpu(example("sampler").infer_chains, (weights, np.asarray(keys)[picked], n))
    got_keys, got = (np.asarray(part)[picked] for part in result)
    return {"keys_equal": bool((got_keys == np.asarray(want_keys)).all()), "max_error": float(abs(got - want).max())}


def check_lorenz(result: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Largest error of 64 trajectories against an independent method at rtol 1e-12."""
    rho = np.asarray(args[0])
    picked = np.linspace(0, len(rho) - 1, min(len(rho), 64)).astype(int)
    want = example("lorenz").reference(rho[picked])
    return {"max_error": float(abs(np.asarray(result)[picked] - want).max())}


def check_equal(fn: Callable[..., Any], result: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Largest difference from JAX on the CPU over all results."""
    pairs = zip(jax.tree.leaves(result), jax.tree.leaves(on_cpu(fn, args)), strict=True)
    return {"max_error": max(float(abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)}


def sampler_cases() -> tuple[Case, ...]:
    m = example("sampler")
    everyone = ("xla", "xla_static", "cpu", "ours")
    return tuple(
        Case(f"{chains:,}", partial(m.make_chains, chains), who, static=(2,), check=check_sampler)
        for chains, who in ((1, everyone), (1_024, everyone), (65_536, ("xla", "ours")))
    )


def logistic_cases() -> tuple[Case, ...]:
    m = example("logistic_map")
    fn, _ = m.make()
    shorter = partial(m.make, 1_000_000)
    note = "1,000,000 steps"
    return (Case("10,000,000", m.make, check=partial(check_equal, fn), xla_build=shorter, xla_note=note),)


def lorenz_cases() -> tuple[Case, ...]:
    m = example("lorenz")
    return tuple(
        Case(
            f"{n:,}", partial(m.make, n), ("xla", "cpu", "ours") if n == 2_048 else ("xla", "ours"), check=check_lorenz
        )
        for n in (2_048, 8_192, 32_768, 131_072, 524_288)
    )


def single_case(name: str, label: str, compare: bool = True) -> tuple[Case, ...]:
    m = example(name)
    return (Case(label, m.make, check=partial(check_equal, m.make()[0]) if compare else None),)


def compile_cases(name: str) -> tuple[Case, ...]:
    return (Case(name, program(name).make, contenders=("ours",)),)


# Name -> its cases, made when the benchmark runs (an example may set x64 for its process).
BENCHMARKS: dict[str, Callable[[], tuple[Case, ...]]] = {
    "sampler": sampler_cases,
    "logistic": logistic_cases,
    "lorenz": lorenz_cases,
    "gru": partial(single_case, "gru", "hidden 64, batch 16, 256 steps"),
    "metropolis": partial(single_case, "metropolis", "10,000 draws, 100 observations", compare=False),
    "fixed_point": partial(single_case, "fixed_point", "2,000 steps"),
}
# Programs of which only the cold compilation is timed.
COMPILED = ("lib_blackjax597_nuts_normal", "trajax16_ilqr")
CONTENDERS = ("xla", "xla_static", "cpu", "ours")

sys.path.insert(0, str(ROOT / "examples"))
