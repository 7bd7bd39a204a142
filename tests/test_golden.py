"""Generated modules against tests/golden; ``UPDATE_GOLDEN=1 pytest tests/test_golden.py`` writes them anew.

A golden proves nothing about values (the walks of the table do): it shows what changes in what people read.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

import pytest

import walk
from cases import CASES

GOLDEN = Path(__file__).parent / "golden"
#: Row and plan: a recurrence, a vmapped while, noise, in-place memory, a product, a branch, a reduction, its gradient.
NAMES = {
    "scan": "chosen",
    "while_vmapped": "chosen",
    "normal": "lanes",
    "two_writers_long": "long",
    "scan_constants": "chosen",
    "branch_arrays_in_loop": "chosen",
    "long_rows": "chosen",
    "scan_gradient": "chosen",
}


def hidden(source: str) -> str:
    """A module without what changes with other files: line numbers, and the helpers that tests of their own hold."""
    kernel = source[source.rindex("@triton.jit") :]
    return re.sub(r"# (\S+\.py):\d+", r"# \1", kernel)


@pytest.mark.parametrize("name", NAMES)
def test_golden(name: str) -> None:
    (case,) = (case for case in CASES if case.name == name)
    got = hidden(walk.start(case).kernel(NAMES[name]).source)
    path = GOLDEN / f"{name}.py.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(got)
    want = path.read_text()
    assert got == want, "\n".join(
        difflib.unified_diff(want.splitlines(), got.splitlines(), "golden", "now", lineterm="")
    )


def test_no_golden_is_left_over() -> None:
    assert {path.name.removesuffix(".py.txt") for path in GOLDEN.iterdir()} == set(NAMES)
