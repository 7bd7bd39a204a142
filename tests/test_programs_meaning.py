"""Real programs at tiny size: the numpy meaning of their Graphs is what jax.jit computes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
WORKER = Path(__file__).parent / "program_worker.py"
SOURCES = {path.stem: path.read_text() for path in sorted(PROGRAMS.glob("*.py"))}
LIBRARY_GROUPS = 3


def library_is_missing(source: str) -> bool:
    """Whether a program imports what is not installed."""
    words = [line.split()[1].split(".")[0] for line in source.splitlines() if line.startswith(("import ", "from "))]
    return any(importlib.util.find_spec(word) is None for word in words)


def groups() -> dict[str, list[str]]:
    """Programs that may share a process: flags set at import must not leak from one to another."""
    wide = [name for name, source in SOURCES.items() if "jax_enable_x64" in source]
    own = [name for name in SOURCES if not name.startswith("lib_") and name not in wide]
    libraries = [name for name in SOURCES if name.startswith("lib_") and name not in wide]
    parts = {f"libraries_{i}": libraries[i::LIBRARY_GROUPS] for i in range(LIBRARY_GROUPS)}
    return {"x64": wide, "plain": own, **parts}


GROUPS = groups()


@pytest.mark.parametrize("group", list(GROUPS))
def test_programs_mean_what_jax_computes(group: str) -> None:
    names = [name for name in GROUPS[group] if not library_is_missing(SOURCES[name])]
    if not names:
        pytest.skip("no library of this group is installed")
    # equinox checks errors by a callback to the host unless told to mark them as NaN
    env = os.environ | {"EQX_ON_ERROR": "nan", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "ignore", str(WORKER), *names]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900)
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
    assert [r["name"] for r in records] == names, done.stderr[-2000:]
    assert {r["name"]: r["problems"] for r in records if r["problems"]} == {}


def test_groups_hold_every_program_once() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(SOURCES)
