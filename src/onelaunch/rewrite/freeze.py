"""freeze: a vmapped while whose lanes end at different turns.

    while any(cond(c)): c = where(cond(c), body(c), c)
 -> p = cond(c);  while any(p): c = where(p, body(c), c); p = cond(c)

The predicate becomes a carry, so that the loop's test is one reduction and finished lanes are held by selects.
"""

from __future__ import annotations

import dataclasses

from onelaunch.ir import nodes as n
from onelaunch.ir.builder import Builder
from onelaunch.ir.nodes import Block, Value
from onelaunch.rewrite.rebuild import map_blocks, with_blocks, with_operands


def freeze(graph: n.Graph) -> n.Graph:
    """Every Loop with a batched predicate in the second form."""
    return map_blocks(graph, _block)


def _block(block: Block) -> Block:
    made: list[n.Node] = []
    for node in block.nodes:
        node = with_blocks(node, _block)
        if isinstance(node, n.Loop) and node.cond is not None and node.cond.results[0].ndim and node.cond.nodes:
            made += _loop(node, node.cond)
        else:
            made.append(node)
    return Block(tuple(made), block.results)


def _loop(node: n.Loop, cond: Block) -> list[n.Node]:
    b = Builder(node.where)
    (first,) = substituted(b, cond, dict(zip(node.carry, node.init)))
    before = list(b.nodes)
    held = b.value(first.shape, first.dtype, "running")
    b = Builder(node.where)
    b.nodes = list(node.body.nodes)
    results = [_hold(b, held, new, old) for new, old in zip(node.body.results, node.carry)]
    (again,) = substituted(b, cond, dict(zip(node.carry, results)))
    body = Block(tuple(b.nodes), (*results, again))
    last = b.value(first.shape, first.dtype)
    loop = dataclasses.replace(
        node,
        carry=(*node.carry, held),
        init=(*node.init, first),
        outs=(*node.outs, last),
        body=body,
        cond=Block((), (held,)),
    )
    return [*before, loop]


def _hold(b: Builder, pred: Value, new: Value, old: Value) -> Value:
    """where(pred, new, old), the predicate along the leading dims."""
    if new is old:
        return old
    wide = pred if pred.ndim == new.ndim else b.broadcast(pred, new.shape, range(pred.ndim))
    return b.map("select", wide, new, old, dtype=new.dtype)


def substituted(b: Builder, block: Block, env: dict[Value, Value]) -> tuple[Value, ...]:
    """Append a copy of a block's nodes, with fresh outputs, where ``env`` replaces its free values."""
    for node in block.nodes:
        b.add(fresh(node, env))
    return tuple(env.get(r, r) for r in block.results)


def fresh(node: n.Node, env: dict[Value, Value]) -> n.Node:
    """A copy of a node with new outputs, recorded in ``env``."""
    node = with_operands(node, lambda v: env.get(v) or v)
    renew = lambda vs: tuple(_renew(v, env) for v in vs)  # noqa: E731
    match node:
        case n.Loop():
            carry = renew(node.carry)
            index = _renew(node.index, env) if node.index is not None else None
            cond = _copy(node.cond, env) if node.cond is not None else None
            body = _copy(node.body, env)
            return dataclasses.replace(node, carry=carry, index=index, cond=cond, body=body, outs=renew(node.outs))
        case n.Branch():
            copies = tuple(_copy(block, env) for block in node.blocks)
            return dataclasses.replace(node, blocks=copies, outs=renew(node.outs))
        case n.Map() | n.Sort():
            return dataclasses.replace(node, outs=renew(node.outs))
        case _:
            return dataclasses.replace(node, out=_renew(node.out, env))


def _copy(block: Block, env: dict[Value, Value]) -> Block:
    nodes = tuple(fresh(node, env) for node in block.nodes)
    return Block(nodes, tuple(env.get(r, r) for r in block.results))


def _renew(v: Value, env: dict[Value, Value]) -> Value:
    env[v] = Value(v.type, v.hint)
    return env[v]
