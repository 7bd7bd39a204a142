"""What explain says: launches before and after, kernels and where they stand, refusals, the reason; text and HTML."""

from __future__ import annotations

import dataclasses
import math
from html.parser import HTMLParser
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import onelaunch
from onelaunch.errors import BuildError
from onelaunch.report import hlo
from onelaunch.report.explain import Explanation, Turns, time

X = jnp.arange(4.0)


def walk(x: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 50, lambda _, c: jnp.sin(c) + c.sum(), x)


def printing(x: jax.Array) -> Any:
    def body(c: jax.Array, i: jax.Array) -> Any:
        c = walk(c)
        jax.debug.print("{}", i)
        return c, None

    return walk(lax.scan(body, x, jnp.arange(20))[0])


def lines(found: Explanation) -> dict[str, str]:
    return {label: text for _, label, text in found.rows()}


def test_one_kernel() -> None:
    found = onelaunch.explain(walk, X)
    text = lines(found)
    assert (found.before.counted, len(found.kernels), found.launches_after, found.refusals) == (False, 1, 1, ())
    assert found.launches_before == 150 and "150 launches (estimated" in text["under XLA"]
    assert text["each turn"].startswith("about 3 launches, 50 turns, scan at ") and __file__ in text["each turn"]
    assert text["with fuse"].startswith("1 launch, estimated")
    assert (
        text["reason"].startswith("one kernel, estimated ")
        and f"against {time(found.before.us)} under XLA" in text["reason"]
    )
    assert text["kernel walk"].startswith("all of the program")
    assert text["axes"] == "lanes: 4" and text["in"] == text["out"] == "1 array(s), 16 bytes"
    assert text["resources"].startswith("cuda:90: ") and "bytes spilled" in text["resources"]
    assert str(found).startswith(f"walk  {__file__}:")


def test_several_kernels_and_where_they_stand() -> None:
    low = onelaunch.fuse(printing).lower(X)
    found = low.explain(compile=False)
    assert [k.name for k in found.kernels] == [k.name for k in low.kernels] == ["printing_1", "printing_2"]
    inside, outside = (k.place for k in found.kernels)
    assert inside.startswith("in scan at ") and __file__ in inside and outside == "once a call"
    assert found.launches_after < found.launches_before / 20 and found.us_after < found.before.us
    (refusal,) = found.refusals
    assert refusal.what in ("debug_print", "debug_callback") and str(refusal) == lines(found)["in XLA"]
    assert "2 kernel(s) with XLA between them" in found.reason
    assert all(k.resources is None for k in found.kernels)


@pytest.mark.parametrize(
    ("fn", "shape", "reason"),
    [
        (lambda x: x @ x, (4096, 4096), "would lose as one kernel"),
        (lambda x: jnp.fft.fft(x).real + 1, (8,), "too little to gain"),
    ],
)
def test_left_to_xla(fn: Any, shape: tuple[int, ...], reason: str) -> None:
    found = onelaunch.explain(fn, jax.ShapeDtypeStruct(shape, jnp.float32))
    assert found.kernels == () and reason in found.reason
    assert lines(found)["with fuse"] == "left to XLA" and found.refusals


def test_loops_of_unknown_length() -> None:
    found = onelaunch.explain(lambda x: lax.while_loop(lambda c: c.max() < 9, lambda c: c + 1, x), X)
    assert "turns not known" in lines(found)["each turn"]
    gamma = onelaunch.explain(lambda key: jax.random.gamma(key, 2.0), jax.random.key(0))
    assert math.isinf(gamma.launches_before) and lines(gamma)["under XLA"] == "loops of unknown length"


def test_a_build_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise BuildError("walk", "ttgir", "no registers left")

    monkeypatch.setattr(onelaunch.build, "compile", fails)
    assert "no registers left" in lines(onelaunch.explain(walk, X))["build"]


class Cells(HTMLParser):
    """The text of a table's cells."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_html_has_the_same_text_escaped() -> None:
    low = onelaunch.fuse(printing).lower(X)
    found = dataclasses.replace(low.explain(compile=False), name="<script>alert(1)</script>")
    page = found._repr_html_()
    assert "<script>" not in page and "&lt;script&gt;" in page
    cells = Cells()
    cells.feed(page)
    told = " ".join(cells.texts)
    for _, label, text in found.rows():
        assert label in told and text in told


MODULE = """
HloModule jit_f, is_scheduled=true
%body (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %p = (s32[], f32[4]) parameter(0)
  %x = f32[4]{0} get-tuple-element(%p), index=1
  %a = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused
  %b = f32[] custom-call(%a), custom_call_target="k"
  ROOT %t = (s32[], f32[4]) tuple(%b, %a)
}
%cond (p: (s32[], f32[4])) -> pred[] {
  ROOT %c = pred[] compare(%p, %p), direction=LT
}
ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %first = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused
  %w = (s32[], f32[4]) while(%first), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"7"}}
  %v = (s32[], f32[4]) while(%w), condition=%cond, body=%body
  ROOT %y = f32[4]{0} get-tuple-element(%v), index=1
}
"""


def test_launches_of_a_compiled_module() -> None:
    assert [(turn.count, trips) for turn, trips in hlo.loops(MODULE)] == [(3, 7), (3, None)]
    assert str(hlo.count_launches(MODULE)) == "≥ 25"
    assert str(Turns(3, 7, "here")) == "3 launches, 7 turns, here"


@pytest.mark.gpu
def test_launches_are_counted_where_there_is_a_gpu() -> None:
    found = onelaunch.explain(walk, X)
    assert found.before.counted and found.launches_before >= 50
    assert [loop.turns for loop in found.before.loops] == [50]
