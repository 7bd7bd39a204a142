"""Blocks, loops and branches: what is carried in registers, what in memory, and where buffers come from."""

from __future__ import annotations

import math
from collections.abc import Sequence

from onelaunch.ir import nodes as n
from onelaunch.ir.nodes import Value
from onelaunch.place import finish
from onelaunch.place.alias import Aliases
from onelaunch.place.nodes import Arrive, Buffer, For, If, Var, While
from onelaunch.place.overlap import overlap
from onelaunch.place.placer import NeedsNoGrid, Placer
from onelaunch.place.regions import Region, readers, split
from onelaunch.place.store import copy, fill_region, materialise, update_memory
from onelaunch.place.views import View, flows, parts, release
from onelaunch.place.writer import BOOL, INT32, INT64
from onelaunch.schedule.plan import Home


class Control:
    """Walks the blocks of one Graph."""

    def __init__(self, p: Placer, aliases: Aliases):
        self.p, self.aliases = p, aliases
        self.inputs: list[Buffer] = []
        self.outputs: list[Buffer] = []
        self.scratch: list[Buffer] = []
        self.counter: Buffer | None = None
        self.alone = False  # in the part that one program runs after the others
        self.claimed: list[Buffer] = []  # (parts of) outputs that values lie in
        self.views: dict[View, Buffer] = {}
        self.readers = readers(p.graph)
        self.flows = flows(p.graph, [row_major(v.shape) for v in p.graph.block.results])

    # --- buffers --------------------------------------------------------------------------------------
    def arguments(self) -> None:
        """Buffers of parameters, closed-over arrays and results."""
        p, graph = self.p, self.p.graph
        for k, v in enumerate((*graph.params, *(v for v, _ in graph.consts))):
            name = f"{v.hint}_ptr" if v.hint else f"in{k}_ptr"
            buffer = Buffer(name, v.dtype, v.shape, row_major(v.shape), "in", v.size)
            p.buffers[v] = buffer
            self.inputs.append(buffer)
        for k, v in enumerate(graph.block.results):
            self.outputs.append(Buffer(f"out{k}_ptr", v.dtype, v.shape, row_major(v.shape), "out", v.size))

    def storage(self, v: Value) -> Buffer:
        """A buffer for a value: the output it ends in if that is free, else scratch."""
        p = self.p
        dims = p.plan.dims[v]
        shared = p.plan.batch and "batch" not in dims and "grid" not in dims and not self.alone
        view = self.flows.get(v)
        if view is not None and not shared:
            target = self.view(v, view)
            if not any(overlap(target, other) for other in self.claimed):
                self.claimed.append(target)
                return target
        name = f"{v.hint or 'work'}{len(self.scratch)}_ptr"
        if not p.plan.batch or self.alone:
            buffer = Buffer(name, v.dtype, v.shape, row_major(v.shape), "scratch", v.size)
        elif shared:
            dtype = INT64 if v.size * p.plan.grid >= 2**31 else INT32
            program = p.w.top("program_id", (), dtype, ())
            offset = p.w.top("index_mul", (program, v.size), dtype, ())
            buffer = Buffer(name, v.dtype, v.shape, row_major(v.shape), "scratch", v.size * p.plan.grid, offset)
        else:
            d = next(d for d, kind in enumerate(dims) if kind in ("batch", "grid"))
            inner = row_major([1 if k == d else s for k, s in enumerate(v.shape)])
            alone = (
                dims[d] == "grid"
            )  # one element a program: its part in one piece, else neighbouring lanes side by side
            strides = list(inner) if alone else [s * v.shape[d] for s in inner]
            strides[d] = v.size // v.shape[d] if alone else 1
            buffer = Buffer(name, v.dtype, v.shape, tuple(strides), "scratch", v.size)
        self.scratch.append(buffer)
        return buffer

    # --- the whole program ----------------------------------------------------------------------------
    def program(self) -> None:
        """All nodes and results; nodes set apart run in the last program to finish."""
        block, late = self.p.graph.block, self.p.plan.late
        if not late:
            self.block(block)
            self.results(block.results)
            return
        made = {v for node in late for v in n.outputs(node)}
        release(self.flows, self.p.producer, (u for node in late for u in n.uses(node)))
        self.block(n.Block(tuple(node for node in block.nodes if node not in late), ()))
        self.results([r for r in block.results if r not in made])
        w = self.p.w
        zero = Buffer("zero_ptr", INT32, (1,), (1,), "in", 1)
        self.counter = Buffer("arrived_ptr", INT32, (1,), (1,), "out", 1)
        self.inputs.append(zero)
        self.outputs.append(self.counter)
        before = Var(INT32, (), "arrived")
        w.add(Arrive(self.counter, before))
        stmt = If(w.op("index_eq", (before, self.p.plan.grid - 1), BOOL), [])
        self.alone = True
        with w.inside(stmt.then):
            self.block(n.Block(tuple(node for node in block.nodes if node in late), ()))
            self.results([r for r in block.results if r in made])
        w.add(stmt)

    # --- blocks ---------------------------------------------------------------------------------------
    def block(self, block: n.Block) -> None:
        for node in split(block, self.p.plan, self.p.producer, self.readers):
            if isinstance(node, Region):
                self.region(node)
                continue
            self.p.w.where = node.where
            if isinstance(node, n.Loop):
                self.loop(node)
            elif isinstance(node, n.Branch):
                self.branch(node)
            elif isinstance(node, n.Update) and self.p.plan.home[node.out] is Home.MEMORY:
                self.update(node)
            else:
                for v in n.outputs(node):
                    home = self.p.plan.home[v]
                    if home is not Home.INLINE:
                        materialise(self.p, node, v, self.storage(v) if home is Home.MEMORY else None)

    def region(self, region: Region) -> None:
        """Element-wise values in memory: in place over a carry that dies here, else in storage of their own."""
        p = self.p
        p.w.where = region.nodes[0].where
        for v in region.values:
            if v in region.stored:
                carry = self.aliases.replaced.get(v)
                p.buffers[v] = p.buffers[carry] if carry is not None else self.storage(v)
        fill_region(p, region)

    def update(self, node: n.Update) -> None:
        p = self.p
        if node in self.aliases.in_place:
            buffer = p.buffers[node.operand]
        else:
            buffer = self.storage(node.out)
            if p.buffers.get(node.operand) is buffer:
                buffer = self.private(node.out)
            copy(p, node.operand, buffer)
        update_memory(p, node, buffer)

    def private(self, v: Value) -> Buffer:
        """A scratch buffer of its own."""
        view = self.flows.pop(v, None)
        buffer = self.storage(v)
        if view is not None:
            self.flows[v] = view
        return buffer

    def view(self, v: Value, view: View) -> Buffer:
        """The buffer of an output, or of the part of it that a value fills."""
        whole = self.outputs[view.k]
        if view.start == 0 and view.strides == whole.strides and v.shape == whole.shape:
            return whole
        if view not in self.views:
            self.views[view] = Buffer(
                whole.name, v.dtype, v.shape, view.strides, "out", whole.size, start=view.start, base=whole
            )
        return self.views[view]

    def results(self, values: Sequence[Value]) -> None:
        """Store those of ``values`` that the kernel returns and that do not yet stand in their output."""
        todo: list[finish.Copy] = []
        for k, v in enumerate(self.p.graph.block.results):
            if v in values:
                todo += self.missing(v, View(k, self.outputs[k].strides, 0))
        finish.copy_all(self.p, todo, self._reads, self.private)

    def missing(self, v: Value, view: View) -> list[finish.Copy]:
        """What has to be copied for a value to stand in its part of an output."""
        p = self.p
        if v.size == 0:
            return []
        target = self.view(v, view)
        if p.plan.home[v] is Home.MEMORY and p.buffers[v] is target:
            return []
        inside = parts(p.producer.get(v), view) if p.plan.home[v] is Home.INLINE else []
        if any(p.plan.home[u] is Home.MEMORY for u, _ in inside):
            return [item for u, part in inside for item in self.missing(u, part)]
        return [(v, target)]

    # --- loops ----------------------------------------------------------------------------------------
    def loop(self, node: n.Loop) -> None:
        p, w = self.p, self.p.w
        params: list[Var] = []
        inits: list[Var] = []
        for j, (c, init) in enumerate(zip(node.carry, node.init)):
            if p.plan.home[c] is Home.MEMORY:
                self._memory_carry(node, j, c, init)
                continue
            space, shape = p.own_space(c), p.own_shape(c)
            p.regs[c] = {}
            for coords in p.coordinates(c):
                inits.append(w.full(p.fetch(init, p.own_index(c, coords), space), shape))
                p.regs[c][coords] = Var(c.dtype, shape, _hint(c, coords))
                params.append(p.regs[c][coords])
        if node.trip is not None:
            loop: For | While = For(Var(INT32, (), "i"), 0, node.trip, 1, params, inits)
        else:
            assert node.cond is not None
            loop = While(params, inits, turns=node.turns)
            with w.inside(loop.test):
                self.block(node.cond)
                loop.cond = self.any(node.cond.results[0])
        with w.inside(loop.body):
            if isinstance(loop, For):
                assert node.index is not None and node.trip is not None
                w.ranges[loop.index] = (0, node.trip - 1)
                p.regs[node.index] = {(): w.counted(loop.index, INT32)}
            self.block(node.body)
            loop.results = self._carry_on(node)
        w.where = node.where
        w.add(loop)
        for c, out in zip(node.carry, node.outs):
            if p.plan.home[c] is Home.MEMORY:
                p.buffers[out] = p.buffers[c]
            else:
                p.regs[out] = p.regs[c]

    def _memory_carry(self, node: n.Loop, j: int, c: Value, init: Value) -> None:
        p = self.p
        if (node, j) in self.aliases.taken:
            p.buffers[c] = p.buffers[init]
            return
        p.buffers[c] = self.storage(c)
        if p.buffers.get(init) is p.buffers[c]:
            p.buffers[c] = self.private(c)
        copy(p, init, p.buffers[c])

    def _carry_on(self, node: n.Loop) -> list[Var]:
        """The next values of the register carries; memory carries written back where they moved."""
        p, w = self.p, self.p.w
        results = []
        moved: list[tuple[Value, Buffer]] = []
        for c, r in zip(node.carry, node.body.results):
            if p.plan.home[c] is not Home.MEMORY:
                space, shape = p.own_space(c), p.own_shape(c)
                results += [w.full(p.fetch(r, p.own_index(c, k), space), shape) for k in p.coordinates(c)]
            elif not (p.plan.home[r] is Home.MEMORY and p.buffers[r] is p.buffers[c]):
                moved.append((r, p.buffers[c]))
        targets = {id(b) for _, b in moved}
        staged = []
        direct = []
        for r, target in moved:
            hazards = {id(p.buffers[v]) for v in self._reads(r)} & targets
            if hazards:
                temporary = self.private(r)
                copy(p, r, temporary)
                staged.append((r, temporary, target))
            else:
                direct.append((r, target))
        for r, target in direct:
            copy(p, r, target)
        for r, temporary, target in staged:
            saved, home = p.buffers.get(r), p.plan.home[r]
            p.buffers[r], p.plan.home[r] = temporary, Home.MEMORY
            copy(p, r, target)
            p.plan.home[r] = home
            if saved is not None:
                p.buffers[r] = saved
        return results

    def _reads(self, v: Value) -> set[Value]:
        """Values in memory that reading ``v`` reads."""
        p = self.p
        if p.plan.home[v] is Home.INLINE and v in p.producer:
            return {u for a in n.operands(p.producer[v]) for u in self._reads(a)}
        return {v} if p.plan.home[v] is Home.MEMORY else set()

    def any(self, pred: Value) -> Var:
        """Whether a predicate holds in any lane of the program."""
        p, w = self.p, self.p.w
        space = p.own_space(pred)
        total: Var | None = None
        for c in p.coordinates(pred):
            x = p.fetch(pred, p.own_index(pred, c), space)
            total = x if total is None else w.scalar("or", (total, x), BOOL)
        if total is None:
            return w.const(False, BOOL)
        if not total.shape:
            return total
        for k in range(len(space)):
            mask = w.lane_mask(space, k)
            if isinstance(mask, Var):
                total = w.op("and", (total, mask), BOOL)
        for k in reversed(range(len(total.shape))):
            shape = (*total.shape[:k], *total.shape[k + 1 :])
            total = w.op("reduce", (total,), BOOL, shape, ("or", k))
        return total

    # --- branches -------------------------------------------------------------------------------------
    def branch(self, node: n.Branch) -> None:
        p = self.p
        index = p.fetch(node.index, (), ())
        if index.shape:
            raise NeedsNoGrid
        for j, out in enumerate(node.outs):
            if p.plan.home[out] is Home.MEMORY:
                root = self.aliases.branches.get((node, j))
                p.buffers[out] = p.buffers[root] if root is not None else self.storage(out)
        outs = self._cases(node, index, 0)
        position = 0
        for out in node.outs:
            if p.plan.home[out] is Home.MEMORY:
                continue
            coords = p.coordinates(out)
            p.regs[out] = dict(zip(coords, outs[position : position + len(coords)]))
            position += len(coords)

    def _cases(self, node: n.Branch, index: Var, k: int) -> list[Var]:
        """Branches k, k+1, ... as nested ifs."""
        if k == len(node.blocks) - 1:
            return self._case(node, k)
        w = self.p.w
        if (truth := self._truth(index)) is not None and len(node.blocks) == 2:
            stmt = If(truth, [])
            with w.inside(stmt.then):
                stmt.then_results = self._case(node, 1)
            with w.inside(stmt.other):
                stmt.other_results = self._case(node, 0)
            stmt.outs = [Var(v.dtype, v.shape) for v in stmt.then_results]
            w.add(stmt)
            return stmt.outs
        last = k == len(node.blocks) - 2
        # an index below 0 is the first branch, one past the end the last
        test = w.op("index_lt", (index, k + 1), BOOL) if k == 0 or not last else w.op("index_eq", (index, k), BOOL)
        stmt = If(test, [])
        with w.inside(stmt.then):
            stmt.then_results = self._case(node, k)
        with w.inside(stmt.other):
            stmt.other_results = self._cases(node, index, k + 1)
        stmt.outs = [Var(v.dtype, v.shape) for v in stmt.then_results]
        w.add(stmt)
        return stmt.outs

    def _truth(self, index: Var) -> Var | None:
        """The bool that an index is a cast of."""
        fn, args, _ = self.p.w.makers.get(index, ("", (), ()))
        return args[0] if fn == "cast" and isinstance(args[0], Var) and args[0].dtype == BOOL else None

    def _case(self, node: n.Branch, k: int) -> list[Var]:
        p, w = self.p, self.p.w
        block = node.blocks[k]
        self.block(block)
        results = []
        for out, r in zip(node.outs, block.results):
            if p.plan.home[out] is Home.MEMORY:
                if not (p.plan.home[r] is Home.MEMORY and p.buffers[r] is p.buffers[out]):
                    copy(p, r, p.buffers[out])
                continue
            space, shape = p.own_space(out), p.own_shape(out)
            results += [w.full(p.fetch(r, p.own_index(out, c), space), shape) for c in p.coordinates(out)]
        return results


def row_major(shape: list[int] | tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements."""
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


def _hint(v: Value, coords: tuple[int, ...]) -> str:
    return "_".join([v.hint or "c", *map(str, coords)]) if v.hint or coords else ""
