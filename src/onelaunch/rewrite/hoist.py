"""hoist: what does not change inside a loop is computed before it."""

from __future__ import annotations

from functools import partial

from onelaunch.ir import nodes as n
from onelaunch.ir.nodes import Block, Value
from onelaunch.rewrite.rebuild import map_blocks, with_blocks

#: Values larger than this stay in the loop unless they are only moved: holding them costs memory.
LARGEST = 1 << 22


def hoist(graph: n.Graph) -> n.Graph:
    """Loop-invariant nodes moved out of every loop, inner loops first."""
    return map_blocks(graph, _block)


def _block(block: Block) -> Block:
    made: list[n.Node] = []
    for node in block.nodes:
        node = with_blocks(node, _block)
        if isinstance(node, n.Loop):
            inside = set(node.carry) | ({node.index} if node.index is not None else set())
            moved: list[n.Node] = []
            node = with_blocks(node, partial(_leave, inside=inside, moved=moved))
            made += moved
        made.append(node)
    return Block(tuple(made), block.results)


def _leave(block: Block, inside: set[Value], moved: list[n.Node]) -> Block:
    """Split off the nodes that use nothing defined in the loop."""
    stay: list[n.Node] = []
    for node in block.nodes:
        free = not any(v in inside for v in n.uses(node)) and not isinstance(node, n.Loop | n.Branch | n.Empty)
        if free and all(v.size <= LARGEST for v in n.outputs(node)):
            moved.append(node)
        else:
            stay.append(node)
            inside.update(n.outputs(node))
    return Block(tuple(stay), block.results)
