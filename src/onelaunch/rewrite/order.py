"""order: an update goes after the other readers of the array it updates, so that it can happen in place."""

from __future__ import annotations

from onelaunch.ir import nodes as n
from onelaunch.ir.nodes import Block, Value
from onelaunch.rewrite.rebuild import map_blocks, with_blocks


def order(graph: n.Graph) -> n.Graph:
    """Every block in an order that keeps all dependences and puts updates last where it can."""
    return map_blocks(graph, _block)


def _block(block: Block) -> Block:
    nodes = [with_blocks(node, _block) for node in block.nodes]
    producer = {v: k for k, node in enumerate(nodes) for v in n.outputs(node)}
    needs = [{producer[v] for v in n.uses(node) if v in producer and producer[v] != k} for k, node in enumerate(nodes)]
    depends = _closure(needs)
    views = _views(nodes)
    for k, node in enumerate(nodes):
        touched = _overwritten(node)
        for x in touched:
            for j, other in enumerate(nodes):
                if j == k or k in depends[j] or j in needs[k]:
                    continue
                if any(x in views.get(v, {v}) for v in n.uses(other)):
                    needs[k].add(j)
                    depends[k] |= {j} | depends[j]
                    for m in range(len(nodes)):
                        if k in depends[m]:
                            depends[m] |= depends[k]
    return Block(tuple(nodes[k] for k in _sorted(needs)), block.results)


def _overwritten(node: n.Node) -> tuple[Value, ...]:
    """Arrays that a node may take over."""
    if isinstance(node, n.Update):
        return (node.operand,)
    if isinstance(node, n.Loop):
        return tuple(v for v in node.init if v.size > 64)
    return ()


def _views(nodes: list[n.Node]) -> dict[Value, set[Value]]:
    """What a moved value reads, itself included."""
    views: dict[Value, set[Value]] = {}
    for node in nodes:
        if isinstance(node, n.Move):
            views[node.out] = {node.out}.union(*(views.get(a, {a}) for a in node.args))
    return views


def _closure(needs: list[set[int]]) -> list[set[int]]:
    done: list[set[int]] = []
    for need in needs:
        done.append(need.union(*(done[k] for k in need)) if need else set())
    return done


def _sorted(needs: list[set[int]]) -> list[int]:
    """A topological order, as close to the old one as the new edges allow."""
    result: list[int] = []
    state: dict[int, int] = {}

    def visit(k: int) -> None:
        stack = [(k, iter(sorted(needs[k])))]
        state[k] = 1
        while stack:
            node, rest = stack[-1]
            for j in rest:
                if j not in state:
                    state[j] = 1
                    stack.append((j, iter(sorted(needs[j]))))
                    break
            else:
                stack.pop()
                result.append(node)

    for k in range(len(needs)):
        if k not in state:
            visit(k)
    return result
