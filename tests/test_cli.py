"""The command line, as a user calls it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from onelaunch import cli, store

ROOT = Path(__file__).parents[1]
PROGRAM = """
import jax.numpy as jnp
from jax import lax

def halve(x, n):
    return lax.fori_loop(0, n, lambda i, x: x * 0.5, x)

halve.example_args = (jnp.ones(3), 4)

def plain(x):
    return x + 1

def arguments():
    return (jnp.ones(2),)

def wrong():
    return [1]

def make():
    return plain, (jnp.ones(5),)

def constant():
    return jnp.arange(3) * 2

number = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A user's file with functions of every form."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def run(*args: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str, str]:
    """Exit code, output and errors of `onelaunch ARGS`, in this process."""
    monkeypatch.setattr(sys, "argv", ["onelaunch", *args])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


@pytest.mark.parametrize("name", ["halve", "make", "constant"])
def test_explain_names_launches_and_refusals(name, file, capsys, monkeypatch):
    code, out, err = run("explain", f"{file}:{name}", capsys=capsys, monkeypatch=monkeypatch)
    assert (code, err) == (0, "")
    assert f"{file}:{name}: 1 launch(es), 0 refusal(s)" in out


def test_explain_takes_arguments_from_another_function(file, capsys, monkeypatch):
    code, out, _ = run("explain", f"{file}:plain", "--args-from", "arguments", capsys=capsys, monkeypatch=monkeypatch)
    assert code == 0 and "1 launch(es)" in out


def test_explain_with_a_target_prints_resources(file, capsys, monkeypatch):
    code, out, _ = run("explain", f"{file}:halve", "--target", "cuda:90", capsys=capsys, monkeypatch=monkeypatch)
    assert code == 0 and "cuda:90: " in out and "registers a thread, 0 bytes spilled" in out


def test_emit_prints_a_module_or_writes_it(file, tmp_path, capsys, monkeypatch):
    code, out, _ = run("emit", f"{file}:halve", capsys=capsys, monkeypatch=monkeypatch)
    assert code == 0 and "@triton.jit" in out
    target = tmp_path / "kernel.py"
    code, _, _ = run("emit", f"{file}:halve", "-o", str(target), capsys=capsys, monkeypatch=monkeypatch)
    assert code == 0 and target.read_text().strip() == out.strip()
    compile(target.read_text(), str(target), "exec")


BAD = {
    "no colon": (["explain", "FILE"], "not of the form FILE.py:NAME"),
    "missing file": (["explain", "nowhere.py:f"], "no such file: nowhere.py"),
    "not Python": (["explain", "README.md:f"], "README.md"),
    "unknown name": (["emit", "FILE:nothing"], "has no 'nothing'; its functions: halve, plain"),
    "not a function": (["explain", "FILE:number"], "number in"),
    "arguments missing": (["explain", "FILE:plain"], "plain takes arguments"),
    "arguments not a tuple": (["explain", "FILE:plain", "--args-from", "wrong"], "tuple"),
    "unknown --args-from": (["explain", "FILE:plain", "--args-from", "nothing"], "has no 'nothing'"),
    "unknown target": (["explain", "FILE:halve", "--target", "cuda:1"], "unknown target 'cuda:1'"),
    "unknown option": (["emit", "FILE:halve", "--wrong"], "--wrong"),
    "unknown command": (["fuse"], "fuse"),
    "two ways to clean": (["cache", "--clear", "--limit", "1"], "exclude each other"),
}


@pytest.mark.parametrize("args, message", BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_line_and_exit_code_2(args, message, file, capsys, monkeypatch):
    args = [arg.replace("FILE", file) for arg in args]
    code, _, err = run(*args, capsys=capsys, monkeypatch=monkeypatch)
    assert code == 2
    assert message in err and err.count("\n") == 1


def test_a_file_that_does_not_run_is_one_line(tmp_path, capsys, monkeypatch):
    path = tmp_path / "broken.py"
    path.write_text("import nothing_of_this_name\n")
    code, _, err = run("explain", f"{path}:f", capsys=capsys, monkeypatch=monkeypatch)
    assert code == 2 and "ModuleNotFoundError" in err and err.count("\n") == 1


def test_cache_shows_and_clears(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("ONELAUNCH_CACHE_DIR", str(tmp_path))
    store.put("kernel-0", {"code": b"0" * 1000})
    code, out, _ = run("cache", capsys=capsys, monkeypatch=monkeypatch)
    assert code == 0 and f"{tmp_path}: 1 entries" in out
    code, out, _ = run("cache", "--clear", capsys=capsys, monkeypatch=monkeypatch)
    assert code == 0 and "0 entries, 0.0 MB" in out


def test_demo_checks_the_sampler_and_compiles_it():
    command = [sys.executable, "-m", "onelaunch.cli", "demo", "--steps", "50"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    for text in ("while_loop", "@triton.jit", "the same bits", "cuda:90: "):
        assert text in done.stdout


def test_bench_passes_its_options_on():
    done = subprocess.run(
        [sys.executable, "-m", "onelaunch.cli", "bench", "--only", "nothing"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "invalid choice: 'nothing'" in done.stderr
