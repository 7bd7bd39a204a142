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

import triton

from onelaunch.emit.kernel import Kernel, Param
from onelaunch.load import load, mode

#: What fills an argument: an array, a number or flag written into the text, or nothing.
Argument = Param | int | float | bool | None

_HEAD = "import triton\nimport triton.language as tl\n"


@functools.cache
def family(name: str) -> str:
    """A module text: Triton's imports and the jitted functions of ``kernels/rows.py`` and ``kernels/NAME.py``."""
    return "\n\n\n".join([_HEAD.rstrip(), *_functions("rows"), *_functions(name)]) + "\n"


def _functions(name: str) -> list[str]:
    text = (Path(__file__).parent / f"{name}.py").read_text()
    lines = text.splitlines()
    nodes = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    return ["\n".join(lines[min(d.lineno for d in n.decorator_list) - 1 : n.end_lineno]) for n in nodes]


def entry(name: str, function: str, arguments: Mapping[str, Argument], grid: tuple[int, ...], num_warps: int) -> Kernel:
    """``function`` of family ``name`` as a Kernel; the arrays become its params, inputs before outputs."""
    params = [value for value in arguments.values() if isinstance(value, Param)]
    params.sort(key=lambda p: ("in", "out", "scratch").index(p.role))
    shown = [f"    {key}={_show(value)}," for key, value in arguments.items()]
    title = f"{function}_entry"
    text = f"@triton.jit\ndef {title}({', '.join(p.name for p in params)}):\n    {function}(\n"
    body = "\n".join("    " + line for line in shown)
    source = f"{family(name)}\n\n{text}{body}\n    )\n"
    return Kernel(title, source, tuple(params), grid, num_warps=num_warps)


def run(name: str, function: str, grid: tuple[int, ...], num_warps: int, arguments: Mapping[str, Any]) -> None:
    """Launch ``function`` of family ``name`` compiled, on the current device and stream; arguments by their names."""
    call = functools.partial(_compiled(name, function)[grid], num_warps=num_warps, enable_fp_fusion=True)
    if triton.knobs.runtime.interpret:  # then Triton's own library is that of the interpreter
        with mode(interpret=False):
            call(**arguments)
    else:
        call(**arguments)


@functools.cache
def _compiled(name: str, function: str) -> Any:
    return getattr(load(name, family(name), interpret=False), function)


def _show(value: Argument) -> str:
    if isinstance(value, Param):
        return value.name
    if isinstance(value, float) and not abs(value) < float("inf"):
        return f'float("{value}")'
    return repr(value)
