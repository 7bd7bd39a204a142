"""Device functions: our own library of ``@triton.jit`` functions, handed out as source text.

``closure(names)`` gives the text that a generated module needs. The files are read as text, never imported here,
so this works without Triton.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path

FILES = (
    "integer",
    "floating",
    "exponential",
    "trigonometric",
    "special",
    "gamma",
    "incomplete",
    "prng",
    "reduce",
    "lanes",
)


@cache
def library() -> dict[str, str]:
    """Source text (decorator included) of every device function, by name."""
    found: dict[str, str] = {}
    for file in FILES:
        text = (Path(__file__).parent / f"{file}.py").read_text()
        lines = text.splitlines()
        for node in ast.parse(text).body:
            if not isinstance(node, ast.FunctionDef):
                continue
            assert node.name not in found, f"device function {node.name} is defined twice"
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found


@cache
def calls(name: str) -> tuple[str, ...]:
    """Device functions that one device function uses directly, in order of first use; locals may bear their names."""
    names = [n for n in ast.walk(ast.parse(library()[name])) if isinstance(n, ast.Name)]
    own = {n.id for n in names if isinstance(n.ctx, ast.Store)}
    return tuple(dict.fromkeys(n.id for n in names if n.id in library() and n.id not in own | {name}))


def used(expression: str) -> tuple[str, ...]:
    """Device functions that a Triton expression calls."""
    names = [n.id for n in ast.walk(ast.parse(expression)) if isinstance(n, ast.Name)]
    return tuple(dict.fromkeys(n for n in names if n in library()))


def order(names: Iterable[str]) -> tuple[str, ...]:
    """``names`` and all they need, every function after those it calls."""
    done: dict[str, None] = {}

    def visit(name: str) -> None:
        if name in done:
            return
        for callee in calls(name):
            visit(callee)
        done[name] = None

    for name in sorted(set(names)):
        visit(name)
    return tuple(done)


def closure(names: Iterable[str]) -> str:
    """Source text of the functions ``names`` and of all they call, in dependency order; '' for no names.

    Raises KeyError for a name that is not a device function.
    """
    return "\n\n\n".join(library()[name] for name in order(names)) + ("\n" if names else "")
