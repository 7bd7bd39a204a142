"""Every primitive of JAX has a rule or a reason, and every rule has a row in the table."""

from __future__ import annotations

import functools

import jax
import jax.extend.core.primitives
import pytest

from cases import CASES, primitives
from onelaunch.errors import FusionError
from onelaunch.ops import REFUSED, RULES
from onelaunch.ops.table import COMPLEX
from onelaunch.trace import to_graph

ALL = set(RULES) | set(COMPLEX)

#: Rules whose primitives a row can't reach, and why.
OTHER_VERSIONS = (
    "call_hi_primitive copy_p eval_jaxpr expand_dims log2 logaddexp mulhi one_minus_square polynomial random_gamma_grad"
)
UNREACHED = {
    "of other versions of JAX": OTHER_VERSIONS,
    "older names of JAX's calls": "call closed_call checkpoint core_call core_closed_call custom_vjp_call_jaxpr "
    "named_call pjit remat xla_call",
    "older names of scatters": "scatter_add scatter_max scatter_min scatter_mul scatter_sub",
    "only under shard_map or explicit sharding": "from_edtype layout_constraint mesh_cast pvary reshard "
    "sharding_constraint to_edtype",
    "ordered effects": "after_all create_token",
}


def known() -> set[str]:
    found = vars(jax.extend.core.primitives).values()
    return {p.name for p in found if isinstance(p, jax.extend.core.Primitive)}


@functools.cache
def covered() -> frozenset[str]:
    return frozenset().union(*map(primitives, CASES))


def test_every_primitive_has_a_rule_or_a_reason() -> None:
    assert sorted(known() - ALL - set(REFUSED)) == []


def test_every_refusal_says_why_and_what_to_do() -> None:
    for name, (why, fix) in REFUSED.items():
        assert why and fix.endswith((".", ";", ")")), name
        assert name not in RULES, name


def test_every_rule_has_a_row() -> None:
    excused = {name for names in UNREACHED.values() for name in names.split()}
    inside = {"random_unwrap", "random_wrap", "iota_2x32_shape", "threefry2x32"}  # reached through rules only
    assert sorted(ALL - covered() - excused - inside) == []
    assert sorted((excused - set(OTHER_VERSIONS.split())) & covered()) == []
    assert sorted(excused - ALL) == []


def test_every_primitive_of_the_table_has_a_rule_or_is_opened() -> None:
    assert sorted((covered() & known()) - ALL) == []


@pytest.mark.parametrize(
    ("fn", "what"),
    [
        (lambda x: jax.numpy.fft.fft(x), "fft"),
        (lambda x: jax.pure_callback(lambda x: x, x, x), "pure_callback"),
        (lambda x: jax.debug.print("{}", x), "debug_callback"),
        (lambda x: x.astype(jax.numpy.float8_e4m3fn), "convert_element_type"),
        (lambda x: jax.lax.linalg.qr(x[:, None] * x, pivoting=True), "qr"),
    ],
)
def test_refusals_name_the_place(fn: object, what: str) -> None:
    closed = jax.make_jaxpr(fn)(jax.numpy.ones(3))  # type: ignore[arg-type]
    with pytest.raises(FusionError) as caught:
        to_graph(closed)
    assert caught.value.what.startswith(what) or what in ("debug_callback",)
    assert caught.value.where is not None and caught.value.where.file == __file__
    assert caught.value.why and caught.value.fix
