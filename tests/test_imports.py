"""Data flows one way: modules import only what stands above them (docs/design.md), at their top."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
# Rooms in the order of the pipeline; a module belongs to the longest name that begins its own.
ORDER = [
    *("errors", "options", "target", "store", "compat", "device", "ir", "ops", "trace", "rewrite", "analyse"),
    *(
        "place.nodes",
        "place.space",
        "schedule",
        "place",
        "emit",
        "pipeline",
        "partition",
        "load",
        "ptx",
        "build",
        "launch",
        "tune",
        "report",
        "sparse",
        "kernels",
    ),
    *("nn", "torch", "single", "primitive", "derive", "account", "api", "cli"),
]
FRAMEWORKS = {
    "jax": "compat ops trace partition launch.jax nn single primitive derive account api cli",
    "torch": "launch.torch torch",
    "triton": "load build device launch.interpreter launch.torch kernels",
}
MODULES = {
    ".".join(p.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): ast.parse(p.read_text())
    for p in sorted((SRC / "onelaunch").rglob("*.py"))
}


def imported(tree: ast.AST) -> list[tuple[ast.stmt, str]]:
    """Every import statement under a node with each module that it names (`from a import b`: a.b where that is one)."""
    found: list[tuple[ast.stmt, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            full = [f"{base}.{alias.name}" for alias in node.names]
            found += [(node, name if name in MODULES else base) for name in full]
    return found


def room(module: str, rooms: list[str]) -> str:
    """The longest of some rooms that a module stands in ('' for none)."""
    inner = module.removeprefix("onelaunch.")
    return max((r for r in rooms if inner == r or inner.startswith(r + ".")), key=len, default="")


@pytest.mark.parametrize("module", [m for m in MODULES if m != "onelaunch"])
def test_module_imports_only_upwards_and_at_its_top(module: str) -> None:
    assert room(module, ORDER), f"{module} has no place in the order"
    imports = imported(MODULES[module])
    nested = [(node.lineno, name) for node, name in imports if node not in MODULES[module].body]
    assert not nested, "imports below the top level"
    for node, name in imports:
        if name.startswith("onelaunch."):
            mine, theirs = ORDER.index(room(module, ORDER)), ORDER.index(room(name, ORDER))
            assert theirs <= mine, f"line {node.lineno}: {module} imports {name}, which stands below it"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_frameworks_stay_in_their_rooms(framework: str) -> None:
    allowed = FRAMEWORKS[framework].split()
    users = {m for m, tree in MODULES.items() for _, name in imported(tree) if name.split(".")[0] == framework}
    assert not {m for m in users if not room(m, allowed)}


def test_modules_inside_a_room_do_not_import_in_a_circle() -> None:
    graph = {m: {n for _, n in imported(tree) if n in MODULES and n != m} for m, tree in MODULES.items()}
    graph.pop("onelaunch", None)
    TopologicalSorter(graph).prepare()


def test_private_jax_only_in_compat() -> None:
    users = {m for m, tree in MODULES.items() for _, name in imported(tree) if name.startswith("jax._src")}
    assert users <= {"onelaunch.compat"}
