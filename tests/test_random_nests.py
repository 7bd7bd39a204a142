"""Random nests of loops and branches, differentiated and batched: what fuse makes of them is what jax.jit does."""

from __future__ import annotations

import os
import random

import hypothesis
import pytest
from hypothesis import strategies as st

from random_check import check

PARTS, PROGRAMS = 8, 25  # in all 200, drawn by hypothesis
KERNELS = 10  # one program in so many runs as a kernel too
#: Shrinking a failure takes many minutes: it is asked for by hand.
PHASES = list(hypothesis.Phase) if os.environ.get("SHRINK") else [hypothesis.Phase.generate]


@pytest.mark.parametrize("part", range(PARTS))
def test_nests_are_what_jax_computes(part: int) -> None:
    @hypothesis.seed(part)
    @hypothesis.settings(
        max_examples=PROGRAMS,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=PHASES,
    )
    @hypothesis.given(st.randoms(use_true_random=False), st.integers(0, KERNELS - 1))
    def run(source: random.Random, number: int) -> None:
        verdict, name = check(source, kernel=number == 1)
        assert verdict in ("same", "sensitive"), f"{name}: {verdict}"

    run()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2000))
def test_nest_by_number(number: int) -> None:
    verdict, name = check(random.Random(number), kernel=number % 4 == 0)
    assert verdict in ("same", "sensitive"), f"{name}: {verdict}"
