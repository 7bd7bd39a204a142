"""The table that every test walks: small programs for every primitive, with hostile inputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax
import jax.extend.core

from rows import complex as complexes
from rows import control, elementwise, foreign, index, linalg, matmul, memory, random, reduce, shape, sort, versions
from rows.row import Row

SUBJECTS = (
    elementwise,
    shape,
    reduce,
    index,
    matmul,
    random,
    control,
    linalg,
    sort,
    foreign,
    complexes,
    versions,
    memory,
)

CASES: tuple[Row, ...] = tuple(row for subject in SUBJECTS for row in subject.ROWS)


@contextmanager
def flags(case: Row) -> Iterator[None]:
    """JAX's flags as a row wants them."""
    with jax.enable_x64(case.x64), jax.threefry_partitionable(not case.classic):
        yield


def traced(case: Row) -> jax.extend.core.ClosedJaxpr:
    """The jaxpr of a row."""
    with flags(case):
        return jax.make_jaxpr(case.fn)(*case.args)


def primitives(case: Row) -> set[str]:
    """The primitives in a row's jaxpr, those of inner jaxprs too."""
    found: set[str] = set()
    collect(traced(case).jaxpr, found)
    return found


def collect(jaxpr: jax.extend.core.Jaxpr, found: set[str]) -> None:
    for eqn in jaxpr.eqns:
        found.add(eqn.primitive.name)
        for inner in jax.tree.leaves(list(eqn.params.values()), is_leaf=is_jaxpr):
            if is_jaxpr(inner):
                collect(getattr(inner, "jaxpr", inner), found)


def is_jaxpr(x: object) -> bool:
    return isinstance(x, jax.extend.core.Jaxpr | jax.extend.core.ClosedJaxpr)
