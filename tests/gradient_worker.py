"""The gradient around each named program, by its float arguments: prints one line of JSON for each.

The vjp of the fused program is two fused programs; what they mean, and with ``--kernels`` what their kernels compute,
is compared with the vjp of the program under ``jax.jit``.
"""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import onelaunch
from onelaunch.ir.interpret import run
from onelaunch.ops.words import raw
from onelaunch.rewrite import rewrite
from onelaunch.trace import to_graph
from program_worker import load, problem
from random_nests import pulled
from test_compose import fused_equations


def check(name: str, kernels: bool) -> list[str]:
    fn, args = load(name).make_small()
    leaves, tree = jax.tree.flatten(args)
    leaves = [jnp.asarray(x) for x in leaves]

    def flat(*xs: Any) -> Any:
        return fn(*jax.tree.unflatten(tree, xs))

    want = jax.tree.leaves(jax.jit(pulled(flat))(*leaves))
    around = pulled(onelaunch.fuse(flat, fallback="error"))
    closed = jax.make_jaxpr(around)(*leaves)
    launches = fused_equations(closed.jaxpr)
    found = [f"{launches} launches"] if launches != 2 else []
    got = jax.tree.leaves(around(*leaves)) if kernels else run(rewrite(to_graph(closed)), [raw(x) for x in leaves])
    pairs = [(raw(x), raw(y)) for x, y in zip(got, want, strict=True)]
    # a gradient that is zero but for rounding has no scale of its own
    far = [(i, x, y) for i, (x, y) in enumerate(pairs) if not np.allclose(x, y, rtol=0, atol=1e-6, equal_nan=True)]
    return found + [f"output {i}: {p}" for i, x, y in far if (p := problem(x, y))]


def main() -> None:
    names = [name for name in sys.argv[1:] if not name.startswith("--")]
    for name in names:
        try:
            problems = check(name, "--kernels" in sys.argv)
        except Exception:
            problems = [traceback.format_exc(limit=-2)]
        print(json.dumps({"name": name, "problems": problems}), flush=True)


if __name__ == "__main__":
    main()
