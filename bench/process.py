"""Runs one measurement in a process of its own, under a time limit, and reads the JSON lines that it prints."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"


@dataclass(frozen=True)
class Outcome:
    """What a worker left: its records, and how it ended ("ok", "time limit", or the last line of its error)."""

    records: tuple[dict[str, Any], ...]
    status: str


def run_worker(script: str, args: Sequence[str], limit_s: float, env: dict[str, str] | None = None) -> Outcome:
    """Runs `python bench/SCRIPT ARGS`, its kernel store empty; kills its whole process group at the limit."""
    with tempfile.TemporaryDirectory() as store:
        paths = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
        own = {"PYTHONPATH": paths, "ONELAUNCH_CACHE_DIR": store, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        full_env = {**os.environ, **own, **(env or {})}
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "bench" / script), *args],
            env=full_env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=limit_s)
            status = "ok" if process.returncode == 0 else last_line(err) or f"exit {process.returncode}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            status = f"time limit of {limit_s:g} s"
    return Outcome(tuple(json.loads(line) for line in out.splitlines() if line.startswith("{")), status)


def last_line(text: str) -> str:
    """The last line of a traceback that says something (JAX adds rules and advice after the error)."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "Exception" in line]
    return (errors or lines or [""])[-1][:300]


def load_file(path: Path) -> ModuleType:
    """The module of a Python file, executed."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def emit(record: dict[str, Any]) -> None:
    """A worker's way to report: one JSON line, at once."""
    print(json.dumps(record), flush=True)


def write_json(path: Path, value: object) -> None:
    """Writes a result file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value, indent=1) + "\n")
    part.replace(path)


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """The device for this process alone, among those that one supervisor started (BENCH_LOCK names their lock)."""
    name = os.environ.get("BENCH_LOCK")
    if not name:
        yield
        return
    with open(name, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
