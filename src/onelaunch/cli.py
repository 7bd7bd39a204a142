"""The command line: ``onelaunch demo | explain | emit | cache | bench``.

Bad input (a file, name, target or option that does not exist, a name that is no function) is one line and exit code 2.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import jax
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from onelaunch import api, store, target
from onelaunch.errors import FusionError, OptionError
from onelaunch.report.explain import Explanation

HERE = Path(__file__).resolve().parent
DEMO_STEPS = 12


@dataclass(frozen=True)
class Program:
    """A function of a user's file with the arguments to trace it with."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="onelaunch")
def cli() -> None:
    """Compile JAX functions, loops and random numbers included, to one Triton kernel."""


def main() -> None:
    """Entry point of the command ``onelaunch``: an error is one line; exit code 2 for bad input, 1 for the rest."""
    try:
        sys.exit(cli(standalone_mode=False) or 0)
    except click.ClickException as error:
        click.echo(f"onelaunch: {' '.join(error.format_message().split())}", err=True)
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)


# The part of a command line that names a program.
spec_argument = click.argument("spec", metavar="FILE.py:NAME")
args_option = click.option("--args-from", metavar="FUNC", help="function of FILE.py that returns NAME's arguments")
target_option = click.option("--target", metavar="TARGET", help='also compile, e.g. for "cuda:90" or "hip:gfx942"')


@cli.command()
@spec_argument
@args_option
@target_option
@click.option("--compile", "compiles", is_flag=True, help="compile the kernels, for their registers and spills")
def explain(spec: str, args_from: str | None, target: str | None, compiles: bool) -> None:
    """Say what of a program becomes kernels, what does not, and why.

    NAME is a function with its arguments in NAME.example_args or from --args-from, or a function without parameters
    that returns (function, arguments).
    """
    parse_target(target)
    low = lower(spec, args_from)
    click.echo(f"{spec}: {low.launches} launch(es), {len(low.refusals)} refusal(s)\n")
    show_explanation(low.explain(target, compile=compiles or target is not None))


@cli.command()
@spec_argument
@args_option
@click.option("-o", "--output", metavar="OUT.py", type=click.Path(dir_okay=False, writable=True, path_type=Path))
def emit(spec: str, args_from: str | None, output: Path | None) -> None:
    """Write the Triton module that a program becomes: readable, and runnable without onelaunch or JAX.

    A program in several kernels is as many modules: OUT_1.py, OUT_2.py, ...
    """
    low = lower(spec, args_from)
    if not low.launches:
        raise click.ClickException(f"{spec} has no kernel; `onelaunch explain {spec}` says why")
    for number, kernel in enumerate(low.kernels, 1):
        if output is None:
            show_source(kernel.source)
            continue
        path = output if low.launches == 1 else output.with_stem(f"{output.stem}_{number}")
        try:
            path.write_text(kernel.source)
        except OSError as error:
            raise click.UsageError(f"cannot write {path}: {error.strerror}") from None
        click.echo(f"{path}: {len(kernel.source.splitlines())} lines, kernel {kernel.name}")


@cli.command()
@click.option("--clear", is_flag=True, help="remove every entry")
@click.option("--limit", type=click.IntRange(min=0), metavar="MB", help="remove the least used entries beyond MB")
def cache(clear: bool, limit: int | None) -> None:
    """Show where compiled kernels are kept and how much they take; --clear and --limit remove entries."""
    if clear and limit is not None:
        raise click.UsageError("--clear and --limit exclude each other")
    if clear or limit is not None:
        removed = store.prune(0 if limit is None else limit * 1_000_000)
        click.echo(f"removed {removed / 1e6:.1f} MB")
    entries, size = store.size()
    click.echo(f"{store.root()}: {entries} entries, {size / 1e6:.1f} MB")


@cli.command(context_settings={"ignore_unknown_options": True})
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def bench(options: tuple[str, ...]) -> None:
    """Run the benchmarks of a checkout (bench/run.py) with OPTIONS, e.g. --only sampler."""
    script = HERE.parents[1] / "bench" / "run.py"
    if not script.exists():
        raise click.UsageError("the benchmarks are part of the repository: run this command from a checkout")
    sys.exit(subprocess.run([sys.executable, str(script), *options], check=False).returncode)


@cli.command()
@click.option("--steps", type=click.IntRange(min=1), default=8_000, show_default=True, help="length of the full run")
def demo(steps: int) -> None:
    """Compile the sampler of jax-ml/jax issue 7024, check it bit for bit, and time it where there is a GPU."""
    sampler = load(demo_file())
    infer, (weights, key, _) = sampler.make()
    args = (weights, key, steps)
    title("1. The program")
    show_source(inspect.getsource(infer).rstrip())
    low = api.fuse(infer).lower(*args)
    title("2. The plan")
    click.echo(str(low.plan).rstrip())
    title("3. The kernel")
    show_source(low.source.rstrip())
    title(f"4. {DEMO_STEPS} steps in Triton's interpreter, against jax.jit")
    agrees = demo_check(infer, (weights, key, DEMO_STEPS))
    title("5. Compiled for sm_90")
    click.echo(resources(low, target.parse("cuda:90")))
    title(f"6. {steps:,} steps on this machine's GPU")
    demo_times(infer, args)
    if not agrees:
        raise click.ClickException("the kernel does not give what jax.jit gives")


def demo_check(fn: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether the kernel, interpreted, gives JAX's keys bit for bit and its values to 1e-12; prints both."""
    cpu = jax.local_devices(backend="cpu")[0]
    with jax.default_device(cpu):
        on_host = jax.device_put(args, cpu)
        with interpreted():
            key, x = jax.device_get(api.fuse(fn)(*on_host))
        want_key, want = jax.device_get(jax.jit(fn)(*on_host))
    same, difference = bool((key == want_key).all()), float(abs(x - want).max())
    click.echo(f"key     {key} against {want_key}: {'the same bits' if same else 'DIFFERENT'}")
    click.echo(f"state   {x} against {want}: difference {difference:.1e}")
    return same and difference <= 1e-12


def demo_times(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Prints the time of one launch and of XLA; or that there is no GPU to run them on."""
    if jax.default_backend() != "gpu":
        click.echo("no GPU here: everything above ran without one, the times need one")
        return
    ours, xla = median_ms(api.fuse(fn), args), median_ms(jax.jit(fn), args)
    click.echo(f"{jax.devices()[0].device_kind}: one kernel {ours:.2f} ms, XLA {xla:.2f} ms ({xla / ours:.1f} times)")


def median_ms(fn: Callable[..., Any], args: tuple[Any, ...], calls: int = 5) -> float:
    """Median time of a call, blocked until ready, after one to compile."""
    jax.block_until_ready(fn(*args))
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        jax.block_until_ready(fn(*args))
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


@contextlib.contextmanager
def interpreted() -> Iterator[None]:
    """Kernels called inside run in Triton's interpreter."""
    before = os.environ.get("ONELAUNCH_INTERPRET")
    os.environ["ONELAUNCH_INTERPRET"] = "1"
    try:
        yield
    finally:
        os.environ.pop("ONELAUNCH_INTERPRET")
        if before is not None:
            os.environ["ONELAUNCH_INTERPRET"] = before


def lower(spec: str, args_from: str | None) -> Any:
    """The program of a command line, lowered."""
    program = find_program(spec, args_from)
    fn = program.fn
    fused = fn if isinstance(fn, api.fuse) else api.fuse(fn)
    try:
        return fused.lower(*program.args)
    except FusionError as error:
        raise click.ClickException(str(error)) from None


def find_program(spec: str, args_from: str | None) -> Program:
    """The function and arguments that FILE.py:NAME stands for; UsageError (exit code 2) where there is none."""
    file, _, name = spec.rpartition(":")
    if not file or not name:
        raise click.UsageError(f"{spec!r} is not of the form FILE.py:NAME")
    module = load(Path(file))
    fn = member(module, file, name)
    if args_from:
        return Program(fn, as_tuple(call(member(module, file, args_from), args_from), args_from))
    if hasattr(fn, "example_args"):
        args = fn.example_args
        return Program(fn, as_tuple(call(args, name) if callable(args) else args, f"{name}.example_args"))
    if required_parameters(fn):
        advice = f"give --args-from FUNC, set {name}.example_args, or name a function that returns ({name}, arguments)"
        raise click.UsageError(f"{name} takes arguments: {advice}")
    made = call(fn, name)
    if isinstance(made, tuple) and len(made) == 2 and callable(made[0]) and isinstance(made[1], tuple):
        return Program(*made)
    return Program(fn, ())


def load(path: Path) -> ModuleType:
    """A user's file as a module; its directory is importable, as for a script."""
    if not path.is_file():
        raise click.UsageError(f"no such file: {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if path.suffix != ".py" or spec is None or spec.loader is None:
        raise click.UsageError(f"not a Python file: {path}")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise click.UsageError(f"{path} does not run: {type(error).__name__}: {error}") from None
    finally:
        sys.path.pop(0)
    return module


def member(module: ModuleType, file: str, name: str) -> Callable[..., Any]:
    """The function called `name` of a module."""
    found = getattr(module, name, None)
    if found is None:
        functions = [n for n, value in vars(module).items() if inspect.isfunction(value) and not n.startswith("_")]
        raise click.UsageError(f"{file} has no {name!r}; its functions: {', '.join(functions) or 'none'}")
    if not callable(found):
        raise click.UsageError(f"{name} in {file} is not a function but {type(found).__name__}")
    return found


def call(fn: Callable[[], Any], name: str) -> Any:
    """Calls a user's function that makes arguments."""
    if required_parameters(fn):
        raise click.UsageError(f"{name} must take no arguments")
    try:
        return fn()
    except Exception as error:
        raise click.UsageError(f"{name}() failed: {type(error).__name__}: {error}") from None


def required_parameters(fn: Callable[..., Any]) -> list[str]:
    """Names of the parameters that a call must give."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return []
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in free]


def as_tuple(value: Any, name: str) -> tuple[Any, ...]:
    """The arguments that something returned."""
    if not isinstance(value, tuple):
        raise click.UsageError(f"{name} must give a tuple of arguments, not {type(value).__name__}")
    return value


def parse_target(text: str | None) -> target.Target | None:
    """A target's name as a Target."""
    try:
        return target.parse(text) if text else None
    except OptionError as error:
        raise click.UsageError(str(error)) from None


def resources(low: Any, where: target.Target) -> str:
    """What one program of the kernel takes on a target, in words."""
    r = low.compile(target=str(where)).resources
    memory = f"{r.spilled} bytes spilled, {r.shared} bytes shared"
    return f"{where}: {r.registers} registers a thread, {memory}, {r.num_warps} warp(s)"


def demo_file() -> Path:
    """examples/sampler.py, in the wheel or in the checkout."""
    places = (HERE / "_examples" / "sampler.py", HERE.parents[1] / "examples" / "sampler.py")
    return next(place for place in places if place.exists())


def title(text: str) -> None:
    """A heading."""
    Console().print(f"\n{text}\n{'─' * len(text)}", style="bold", markup=False, highlight=False)


def show_explanation(found: Explanation) -> None:
    """An explanation, with labels in bold on a terminal."""
    console = Console()
    if not console.is_terminal:
        click.echo(str(found))
        return
    console.print(found.title, style="bold", markup=False, highlight=False)
    table = Table.grid(padding=(0, 2))
    for depth, label, text in found.rows():
        style = "red" if label == "in XLA" else "bold" if depth == 1 else ""
        table.add_row(Text("  " * (depth - 1) + label, style=style), Text(text))
    console.print(table)


def show_source(source: str) -> None:
    """Python source, in colours on a terminal."""
    console = Console()
    if console.is_terminal:
        console.print(Syntax(source, "python", background_color="default", word_wrap=True))
    else:
        click.echo(source)


if __name__ == "__main__":
    main()
