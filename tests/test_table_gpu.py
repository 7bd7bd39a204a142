"""On a GPU: every row of the table through ``fuse``, against JAX on the CPU. ``pytest -m gpu``."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import onelaunch
from cases import CASES, flags
from compare import agree
from onelaunch.ops.words import raw
from rows.row import Row


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_row_on_a_gpu(case: Row) -> None:
    cpu = jax.local_devices(backend="cpu")[0]
    with flags(case):
        got = jax.tree.leaves(onelaunch.fuse(case.fn, fallback="error")(*case.args))
        with jax.default_device(cpu):
            want = jax.tree.leaves(jax.jit(case.fn)(*jax.device_put(case.args, cpu)))
        for k, (x, y) in enumerate(zip(got, want, strict=True)):
            agree(np.asarray(raw(x)), np.asarray(raw(y)), case.ulps, case.floor, f"{case.name}[{k}]")
