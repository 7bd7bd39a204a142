"""Hand-written kernels as modules of their own: a family's jitted functions and one entry with its numbers filled in.

PyTorch launches a family's functions as they are. Where a kernel may take pointers alone (JAX, the interpreter), the
entry calls the function with every other argument written out.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import triton

from onelaunch.emit.kernel import Kernel, Param
from onelaunch.load import load, mode

#: What fills an argument: an array, a number or flag written into the text, or nothing.
Argument = Param | int | float | bool | None

_HEAD = "import triton\nimport triton.language as tl\n"
_PACKAGE = "onelaunch.kernels."


@functools.cache
def family(name: str) -> str:
    """A module text: Triton's imports and the jitted functions of ``kernels/NAME.py`` and of what it imports."""
    functions = [text for module in _modules(name) for text in _functions(module)]
    return "\n\n\n".join([_HEAD.rstrip(), *functions]) + "\n"


def _modules(name: str) -> list[str]:
    """The kernel modules that one needs, each after those that it imports; ``name`` last."""
    froms = [node for node in _parsed(name).body if isinstance(node, ast.ImportFrom)]
    needed = [(node.module or "").removeprefix(_PACKAGE) for node in froms if (node.module or "").startswith(_PACKAGE)]
    return [*dict.fromkeys(inner for module in needed for inner in _modules(module)), name]


def _parsed(name: str) -> ast.Module:
    return ast.parse((Path(__file__).parent / f"{name}.py").read_text())


def _functions(name: str) -> list[str]:
    lines = (Path(__file__).parent / f"{name}.py").read_text().splitlines()
    nodes = [node for node in _parsed(name).body if isinstance(node, ast.FunctionDef)]
    return ["\n".join(lines[min(d.lineno for d in n.decorator_list) - 1 : n.end_lineno]) for n in nodes]


def entry(
    name: str,
    function: str,
    arguments: Mapping[str, Argument],
    grid: tuple[int, ...],
    num_warps: int,
    stages: int = 1,
    registers: int | None = None,
    words: int | None = None,
) -> Kernel:
    """``function`` of family ``name`` as a Kernel; the arrays become its params, inputs before outputs.

    ``words`` adds an argument of that name, so many 64-bit zeros (as i32), which launch functions supply.
    """
    params = [value for value in arguments.values() if isinstance(value, Param)]
    if words:
        zeros = [Param(n, np.dtype(np.int32), (2 * words,), role) for n, role in (("words", "in"), ("spent", "out"))]
        params += zeros
        arguments = {**arguments, "words": zeros[0]}
    elif words is not None:
        arguments = {**arguments, "words": None}
    params.sort(key=lambda p: ("in", "out", "scratch").index(p.role))
    shown = [f"    {key}={_show(value)}," for key, value in arguments.items()]
    title = f"{function}_entry"
    text = f"@triton.jit\ndef {title}({', '.join(p.name for p in params)}):\n    {function}(\n"
    body = "\n".join("    " + line for line in shown)
    source = f"{family(name)}\n\n{text}{body}\n    )\n"
    options: dict[str, Any] = {"num_warps": num_warps, "num_stages": stages, "registers": registers}
    return Kernel(title, source, tuple(params), grid, counter=bool(words), **options)


def run(
    name: str,
    function: str,
    grid: tuple[int, ...],
    num_warps: int,
    arguments: Mapping[str, Any],
    stages: int = 1,
    registers: int | None = None,
) -> Any:
    """Launch ``function`` of family ``name`` compiled, on the current device and stream; arguments by their names.

    Returns the compiled kernel.
    """
    options = {"num_warps": num_warps, "num_stages": stages, "enable_fp_fusion": True}
    options |= {"maxnreg": registers} if registers else {}
    call = functools.partial(_compiled(name, function)[grid], **options)
    if triton.knobs.runtime.interpret:  # then Triton's own library is that of the interpreter
        with mode(interpret=False):
            return call(**arguments)
    return call(**arguments)


@functools.cache
def arguments(name: str, function: str) -> tuple[str, ...]:
    """The names of a function's arguments, in order."""
    node = next(n for n in _parsed(name).body if isinstance(n, ast.FunctionDef) and n.name == function)
    return tuple(argument.arg for argument in node.args.args)


@functools.cache
def _compiled(name: str, function: str) -> Any:
    return getattr(load(name, family(name), interpret=False), function)


def _show(value: Argument) -> str:
    if isinstance(value, Param):
        return value.name
    if isinstance(value, float) and not abs(value) < float("inf"):
        return f'float("{value}")'
    return repr(value)
