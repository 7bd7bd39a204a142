"""Real programs at tiny size: one launch, and the kernel in Triton's interpreter gives what jax.jit gives."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"
sys.path.insert(0, str(BENCH))

import programs  # noqa: E402

# What is not one launch yet, and why; docs/coverage.md lists the same from a run. A program that leaves this list by
# becoming one launch fails its test until it is deleted here.
NOT_ONE_LAUNCH: dict[str, str] = {}
SLOW: set[str] = set()


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in programs.names()]
)
def test_program_agrees_with_jax_in_the_interpreter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = programs.library(name)
    if missing:
        pytest.skip(f"{missing} is not installed")
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    record = programs.check(name, small=True)
    assert record["problems"] == []
    one_launch = record["launches"] == 1 and not record["refusals"]
    assert one_launch == (name not in NOT_ONE_LAUNCH), record["refusals"]


def test_every_program_is_listed() -> None:
    index = (programs.PROGRAMS / "INDEX.md").read_text()
    assert [name for name in programs.names() if f"| {name} |" not in index] == []
    assert set(NOT_ONE_LAUNCH) | SLOW | programs.CHAOTIC <= set(programs.names())
