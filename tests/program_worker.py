"""Programs by name: prints one line of JSON for each, with what is wrong in the numpy meaning of its Graph."""

from __future__ import annotations

import importlib.util
import json
import sys
import traceback
from pathlib import Path
from types import ModuleType

import jax
import numpy as np

from onelaunch.ir.check import verify
from onelaunch.ir.interpret import run
from onelaunch.ops.eigen import eigh_matrix
from onelaunch.ops.words import raw
from onelaunch.trace import to_graph

PROGRAMS = Path(__file__).parent / "programs"
#: Eigenvectors have no sign of their own, and here the search follows it: JAX too is given our choice.
OUR_SIGNS = {"lib_evosax_cmaes"}
#: error allowed, as a part of an output's largest magnitude
TOLERANCE = 5e-4


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, PROGRAMS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def our_eigh(a: jax.Array, **_: object) -> tuple[jax.Array, jax.Array]:
    vectors, values = eigh_matrix(a, lower=True)
    return values, vectors


def problem(got: np.ndarray, want: np.ndarray) -> str:
    """What differs between an output and JAX's; '' if nothing does."""
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"{got.dtype}{got.shape} instead of {want.dtype}{want.shape}"
    if got.dtype.kind in "iub":
        return f"{np.sum(got != want)} of {got.size} integers differ" if (got != want).any() else ""
    x, y = got.astype(np.float64), want.astype(np.float64)
    if (np.isnan(x) != np.isnan(y)).any():
        return "NaN in other places"
    scale = np.max(np.abs(y[np.isfinite(y)]), initial=0)
    with np.errstate(invalid="ignore"):
        error = np.max(np.where((x == y) | np.isnan(x), 0, np.abs(x - y)), initial=0)
    return f"off by {error / scale:.1e} of the largest" if error > TOLERANCE * scale else ""


def check(name: str) -> list[str]:
    if name in OUR_SIGNS:
        jax.numpy.linalg.eigh = our_eigh
    fn, args = load(name).make_small()
    graph = to_graph(jax.make_jaxpr(fn)(*args))
    verify(graph)
    got = run(graph, [raw(jax.numpy.asarray(a)) for a in jax.tree.leaves(args)])
    want = jax.tree.leaves(jax.jit(fn)(*args))
    found = [problem(x, raw(y)) for x, y in zip(got, want, strict=True)]
    return [f"output {i}: {p}" for i, p in enumerate(found) if p]


def main() -> None:
    for name in sys.argv[1:]:
        try:
            problems = check(name)
        except Exception:
            problems = [traceback.format_exc(limit=-3)]
        print(json.dumps({"name": name, "problems": problems}), flush=True)


if __name__ == "__main__":
    main()
