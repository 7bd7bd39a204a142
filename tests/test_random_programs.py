"""Random programs, alone and under vmap: what their kernels compute is what jax.jit does, under plans of every kind."""

from __future__ import annotations

import pytest

import walk
from onelaunch.ir.interpret import run as meaning
from random_programs import Maker
from rows.row import Row

QUICK, MANY = range(20), range(20, 400)


def program(seed: int) -> Row:
    fn, args = Maker(seed).program()
    case = Row(f"seed {seed}", fn, tuple(args), ulps=2000, floor=1)
    return walk.batched(case) if seed % 3 == 2 else case


@pytest.mark.parametrize("seed", QUICK)
def test_random_program(seed: int) -> None:
    row = walk.start(program(seed))
    row.compare(meaning(row.graph, row.args), "meaning")
    row.check(row.plans[seed % len(row.plans)])
    row.check("mixed")


@pytest.mark.slow
@pytest.mark.parametrize("seed", MANY)
def test_random_program_under_every_plan(seed: int) -> None:
    row = walk.start(program(seed))
    for plan in (*row.plans, "mixed"):
        row.check(plan)
