"""Writes docs/tour.md: the sampler of examples/sampler.py through every stage, with the stages' own output.

python docs/make_tour.py            write it
python docs/make_tour.py --check    exit 1 where it is not what the code gives now (same JAX and Triton versions only)
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import triton

from onelaunch import build, pipeline, rewrite, target, trace
from onelaunch.analyse import axes
from onelaunch.cli import load
from onelaunch.emit.kernel import Kernel
from onelaunch.ir import interpret, show
from onelaunch.ir.nodes import Graph, walk
from onelaunch.launch import interpreter

ROOT = Path(__file__).resolve().parents[1]
TOUR = ROOT / "docs" / "tour.md"
SAMPLER = ROOT / "examples" / "sampler.py"
STEPS = 12
TARGETS = ("cuda:80", "cuda:90", "cuda:100", "hip:gfx942")


def fenced(text: str, language: str = "text", keep: int | None = None) -> str:
    """A code block; of more than `keep` lines the rest is counted, not shown."""
    lines = [line.replace(f"{ROOT}{os.sep}", "") for line in text.rstrip().splitlines()]
    if keep and len(lines) > keep:
        lines = [*lines[:keep], f"... {len(lines) - keep} more lines"]
    return "\n".join([f"```{language}", *lines, "```"])


def function(source: str, name: str) -> str:
    """The text of one top-level function with its decorator."""
    _, found, after = source.partition(f"\n@triton.jit\ndef {name}(")
    assert found, name
    body, _, _ = after.partition("\n\n\n")
    return (found + body).strip()


def count(graph: Graph) -> int:
    """Nodes of a Graph, those in loops and branches included."""
    return sum(1 for _ in walk(graph.block))


def tour_program(fn: Callable[..., Any]) -> str:
    text = SAMPLER.read_text()
    start = text.index("def network(")
    end = text.index("def infer_chains(")
    return f"""## 1. The program

{fenced(text[start:end], "python")}

`infer` is plain JAX. {STEPS} steps are traced below, and 8,000 would give the same text: the number is an argument."""


def tour_trace(closed: Any, graph: Graph) -> str:
    return f"""## 2. `trace`: a Graph

JAX traces the function to a jaxpr. Its equations become nodes by the rule table of `ops/`: calls are opened, random
keys become words. What JAX writes as {len(closed.jaxpr.eqns)} outer equations is {count(graph)} nodes of about a dozen
kinds. `ir.show` prints a Graph; `ir.interpret` executes it in numpy.

{fenced(show.show(graph), keep=30)}"""


def tour_rewrite(graph: Graph, after: Graph) -> str:
    rows = ["| pass | nodes after it | of them inside the loop |", "| --- | --- | --- |"]
    rows.append(f"| (traced) | {count(graph)} | {count(graph) - len(graph.block.nodes)} |")
    for step in rewrite.PASSES:
        graph = step(graph)
        rows.append(f"| `{step.__name__}` | {count(graph)} | {count(graph) - len(graph.block.nodes)} |")
    table = "\n".join(rows)
    return f"""## 3. `rewrite`: the same meaning, less work

Each pass takes a Graph and gives one of the same meaning; the tests execute both on hostile inputs.

{table}

The softplus of the weights does not change inside the loop, so it now stands before it:

{fenced(show.show(after))}"""


def tour_plan(after: Graph, batched: Graph) -> str:
    one, _ = pipeline.compile_graph(after)
    many, _ = pipeline.compile_graph(batched)
    found = axes.analyse(after)
    return f"""## 4. `analyse` and `schedule`: where each axis lives

Dims that must move together form axis classes; there are {len(found.members)} here. A class that nothing crosses is a
parallel axis and may be spread over programs. One chain has none:

{fenced(str(one))}

65,536 chains, made by `vmap` over the keys, have one:

{fenced(str(many))}"""


def tour_source(kernel: Kernel) -> str:
    helpers = kernel.source.count("@triton.jit") - 1
    return f"""## 5. `place` and `emit`: the kernel

`place` makes loads, stores, buffers and barriers explicit, `emit` prints. The module has {helpers} device functions
(random bits, exponential, inverse error function, ...), which are copied into it from `device/`, and the kernel:

{fenced(function(kernel.source, kernel.name), "py")}"""


def tour_build(kernel: Kernel) -> str:
    rows = ["| target | registers | spilled, bytes | shared, bytes | warps |", "| --- | --- | --- | --- | --- |"]
    for name in TARGETS:
        r = build.compile(kernel, target.parse(name)).resources
        rows.append(f"| {name} | {r.registers} | {r.spilled} | {r.shared} | {r.num_warps} |")
    table = "\n".join(rows)
    return f"""## 6. `build`: machine code, without a GPU

{table}"""


def tour_run(fn: Callable[..., Any], args: tuple[Any, ...], graph: Graph, kernel: Kernel) -> str:
    flat = [jax.device_get(leaf) for leaf in jax.tree.leaves(args)]
    flat = [jax.device_get(jax.numpy.asarray(leaf)) for leaf in flat]
    meaning = interpret.run(graph, flat)
    run = interpreter.run(kernel, flat)
    want = jax.device_get(jax.jit(fn)(*args))
    lines = [f"{'':<28}key                      state"]
    for label, (key, x) in (("jax.jit", want), ("numpy meaning", meaning), ("kernel, interpreted", run)):
        lines.append(f"{label:<28}{key[0]:>10} {key[1]:>10}    {float(x[0])!r}")
    return f"""## 7. `launch`: the same numbers

{fenced(chr(10).join(lines))}

On a GPU, `launch/jax.py` hands the same kernel to XLA as one custom call, and `launch/torch.py` runs it on PyTorch's
tensors."""


def make() -> str:
    """The whole document."""
    sampler = load(SAMPLER)
    fn, (weights, key, _) = sampler.make()
    args = (weights, key, STEPS)
    closed = jax.make_jaxpr(fn)(*args)
    graph = trace.to_graph(closed, "infer")
    after = rewrite.rewrite(graph)
    chains, chain_args = sampler.make_chains(65_536)
    batched = rewrite.rewrite(trace.to_graph(jax.make_jaxpr(chains)(*chain_args), "infer_chains"))
    _, kernel = pipeline.compile_graph(after)
    parts = [
        f"# The sampler through every stage\n\n<!-- made by docs/make_tour.py; {versions()} -->",
        "The program of jax-ml/jax issue 7024, as `onelaunch.fuse` sees it. Every block below is a stage's own output.",
        tour_program(fn),
        tour_trace(closed, graph),
        tour_rewrite(graph, after),
        tour_plan(after, batched),
        tour_source(kernel),
        tour_build(kernel),
        tour_run(fn, args, after, kernel),
    ]
    return "\n\n".join(parts) + "\n"


def versions() -> str:
    """What the output depends on."""
    return f"JAX {jax.__version__}, Triton {triton.__version__}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.check:
        old = TOUR.read_text()
        if versions() not in old:
            print(f"not compared: {TOUR.name} was not made with {versions()}")
            return 0
        if old != make():
            print(f"{TOUR.name} is not what docs/make_tour.py gives")
            return 1
        return 0
    TOUR.write_text(make())
    return 0


if __name__ == "__main__":
    sys.exit(main())
