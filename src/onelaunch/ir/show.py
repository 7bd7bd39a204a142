"""show: a Graph as short text, one line a node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onelaunch.ir import nodes as n
from onelaunch.ir.nodes import Block, Graph, Value

INDENT = "  "


class Names:
    """Short names for values: the user's hint where free, else %0, %1..."""

    def __init__(self) -> None:
        self.known: dict[Value, str] = {}
        self.taken: set[str] = set()

    def __call__(self, value: Value) -> str:
        if value not in self.known:
            name = value.hint if value.hint and value.hint not in self.taken else f"%{len(self.known)}"
            self.taken.add(name)
            self.known[value] = name
        return self.known[value]

    def define(self, values: Sequence[Value]) -> str:
        return ", ".join(f"{self(v)}: {v.type}" for v in values)

    def use(self, values: Sequence[Value]) -> str:
        return ", ".join(self(v) for v in values)


def show(graph: Graph) -> str:
    """The text of a Graph, for people: ``%3: float32[4] = add %1, %2``."""
    names = Names()
    head = f"{graph.name}({names.define(graph.params)})"
    consts = [f"{INDENT}const {names.define((v,))}" for v, _ in graph.consts]
    return "\n".join([head, *consts, *lines(graph.block, names, INDENT, "return")])


def lines(block: Block, names: Names, indent: str, ending: str) -> Iterator[str]:
    for node in block.nodes:
        yield from node_lines(node, names, indent)
    yield f"{indent}{ending} {names.use(block.results)}"


def node_lines(node: n.Node, names: Names, indent: str) -> Iterator[str]:
    if isinstance(node, n.Loop):
        yield from loop_lines(node, names, indent)
        return
    uses = names.use(n.operands(node))
    yield f"{indent}{names.define(n.outputs(node))} = {detail(node)} {uses}".rstrip()
    if isinstance(node, n.Branch):
        for at, block in enumerate(node.blocks):
            yield f"{indent}case {at}:"
            yield from lines(block, names, indent + INDENT, "yield")


def loop_lines(node: n.Loop, names: Names, indent: str) -> Iterator[str]:
    pairs = ", ".join(f"{names.define((c,))} = {names(i)}" for c, i in zip(node.carry, node.init, strict=True))
    head = f"for {names(node.index)} in {node.trip}" if node.index is not None else "while"
    yield f"{indent}{names.define(node.outs)} = {head} carrying ({pairs}):"
    if node.cond is not None:
        yield from lines(node.cond, names, indent + INDENT, "going")
    yield from lines(node.body, names, indent + INDENT, "yield")


def detail(node: n.Node) -> str:
    """The kind of a node and what it holds besides values."""
    match node:
        case n.Const(value=value):
            return f"const {value!s}"
        case n.Iota(dim=dim):
            return f"iota[{dim}]"
        case n.Map(fn=fn):
            return fn
        case n.Reduce(monoid=monoid, axes=axes):
            return f"reduce_{monoid}{list(axes)}"
        case n.Scan(monoid=monoid, axis=axis, reverse=reverse):
            return f"scan_{monoid}[{axis}{', reverse' if reverse else ''}]"
        case n.Move(op=op):
            fields = ", ".join(f"{k}={v}" for k, v in vars(op).items())
            return f"{type(op).__name__.lower()}({fields})"
        case n.Gather(window=window):
            return f"gather{window_text(window)}"
        case n.Update(monoid=monoid, window=window, unique=unique):
            return f"update_{monoid}{window_text(window)}{' unique' if unique else ''}"
        case n.Dot(contract=contract, batch=batch, precision=precision):
            return f"dot(contract={contract}, batch={batch}, {precision})"
        case n.Sort(dim=dim, num_keys=num_keys):
            return f"sort[{dim}, keys={num_keys}]"
        case _:
            return type(node).__name__.lower()


def window_text(window: n.Window) -> str:
    parts = []
    for d, size in enumerate(window.sizes):
        terms = []
        if window.start[d] is not None:
            terms.append(f"s{window.start[d]}")
        if window.batching[d] is not None:
            terms.append(f"o{window.batching[d]}")
        if window.offset[d] is not None:
            terms.append(f"o{window.offset[d]}<{size}")
        parts.append("+".join(terms) or "0")
    batch = f" over o{list(window.batch)}" if window.batch else ""
    return f"[{', '.join(parts)}{batch}, {window.mode}]"
