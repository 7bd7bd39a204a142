"""emit: the memory-level form -> the text of one Triton module."""

from __future__ import annotations

import ast
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from onelaunch import device
from onelaunch.emit.kernel import Kernel, Param
from onelaunch.emit.names import Names, stem
from onelaunch.emit.text import ATOM, literal, needs, template, typed
from onelaunch.errors import Where
from onelaunch.ir.types import is_bool
from onelaunch.place.nodes import (
    Arrive,
    Barrier,
    Buffer,
    For,
    If,
    Load,
    Op,
    Program,
    Stmt,
    Store,
    Var,
    While,
    defined,
    direct_uses,
    walk,
)

#: No line of a generated module is wider.
WIDTH = 120


#: In programs of at most so many statements, loops of at least so many turns with a body of at most so many operations
#: are unrolled by a factor. Such kernels are compiled without fused multiply-adds: across turns they would make values
#: that neither JAX nor the source has.
SMALL_PROGRAM, LONG_LOOP, TINY_BODY, UNROLL = 60, 64, 8, 8


def emit(program: Program, plan: str, num_warps: int, num_stages: int = 1) -> Kernel:
    """One readable module: device functions it needs, then the kernel, opened by its plan."""
    program = replace(program, name=_function_name(program.name))
    printer = _Printer(program)
    body = printer.print()
    source = _module(program, plan, printer, body)
    params = tuple(_param(b, printer.names.buffer(b)) for b in _buffers(program))
    return Kernel(
        program.name,
        source,
        params,
        (program.grid,),
        num_warps,
        num_stages,
        fp_fusion="loop_unroll_factor" not in source,
        counter=program.counter is not None,
    )


def _function_name(name: str) -> str:
    """The kernel's name: the program's, unless that means something else in the module."""
    taken = name in Names.TAKEN or name in device.library()
    return f"{name}_kernel" if taken else name


def _buffers(program: Program) -> list[Buffer]:
    return [b for b in (*program.inputs, *program.outputs, *program.scratch) if b.size]


def _param(b: Buffer, name: str) -> Param:
    shape = b.shape if b.role != "scratch" else (b.size,)
    return Param(name, b.dtype, shape, b.role)


def _module(program: Program, plan: str, printer: _Printer, body: list[str]) -> str:
    text = "\n".join(body)
    called = {node.id for node in ast.walk(ast.parse(textwrap.dedent(text) or "pass")) if isinstance(node, ast.Name)}
    helpers = device.closure(sorted(called & set(device.library())))
    buffers = _buffers(program)
    arguments = ", ".join(printer.names.buffer(b) for b in buffers)
    doc = [f'    """{plan}', ""]
    doc += [f"    {printer.names.buffer(b)}: {b.role}, {b.dtype}{list(b.shape)}" for b in buffers]
    doc += ['    """']
    signature = f"def {program.name}({arguments}):"
    if len(signature) > WIDTH:
        signature = f"def {program.name}(\n" + "".join(f"    {printer.names.buffer(b)},\n" for b in buffers) + "):"
    uses_language = re.search(r"\btl\.", text) or helpers
    parts = ["import triton\n" + ("import triton.language as tl\n" if uses_language else "")]
    if helpers:
        parts.append(helpers)
    parts.append("\n".join(["@triton.jit", signature, *doc, text]) + "\n")
    return "\n\n".join(parts)


def _tiny(loop: For) -> bool:
    """Whether a loop's body costs less than the branch at its end."""
    straight = all(isinstance(s, Op | Load | Store) for s in loop.body)
    return straight and len(loop.body) <= TINY_BODY and loop.stop - loop.start >= LONG_LOOP * loop.step


class _Printer:
    def __init__(self, program: Program):
        self.program = program
        self.names = Names()
        for b in _buffers(program):
            self.names.buffer(b)
        self.uses = Counter(u for s in walk(program.body) for u in direct_uses(s))
        self.inline: dict[Var, tuple[str, int]] = {}
        self.stems: dict[Var, str] = {}
        self.reads: dict[Var, frozenset[Var]] = {}
        self.lines: list[str] = []
        self.depth = 1
        self.where: str | None = None
        self.local: set[Var] = set()
        self.unrolls = sum(1 for _ in walk(program.body)) <= SMALL_PROGRAM

    # --- text of operands -----------------------------------------------------------------------------
    def name(self, v: Var) -> str:
        return self.names.of(v, v.hint or "x")

    def operand(self, a: Var | int) -> tuple[str, int]:
        if isinstance(a, int):
            return str(a), ATOM if a >= 0 else 14
        if a in self.inline:
            return self.inline[a]
        return self.name(a), ATOM

    def text(self, a: Var | int) -> str:
        return self.operand(a)[0]

    def expression(self, op: Op) -> tuple[str, int]:
        """The text of an operation with its operands filled in, and its precedence."""
        form = template(op, self.program.constants)
        if form == "_0 + _1" and op.args[0] not in self.program.constants and self._negative(op.args[1]):
            form = "_0 - _1"
        level, wanted, arithmetic = needs(form)
        others = [a for k, a in enumerate(op.args) if isinstance(a, Var) and a not in self.program.constants]
        filled: dict[str, str] = {}
        for k, a in enumerate(op.args):
            text, own = self.operand(a)
            if isinstance(a, Var) and a in self.program.constants and k in arithmetic and others:
                bare = literal(self.program.constants[a])
                if bare is not None and form == "_0 - _1" and op.fn == "add":
                    text = bare.removeprefix("-")
                elif bare is not None:
                    text, own = bare, ATOM if not bare.startswith("-") else 13
            filled[f"_{k}"] = f"({text})" if own < wanted.get(k, 0) else text
        return re.sub(r"\b_\d+\b", lambda m: filled[m.group()], form), level

    def _negative(self, a: Var | int) -> bool:
        """A constant printed as a negative number: added, it reads better subtracted."""
        bare = literal(self.program.constants[a]) if isinstance(a, Var) and a in self.program.constants else None
        return bare is not None and bare.startswith("-")

    def leaves(self, v: Var) -> frozenset[Var]:
        """The named Vars that the text of ``v`` mentions."""
        return self.reads.get(v, frozenset((v,)))

    # --- lines ----------------------------------------------------------------------------------------
    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def fitted(self, make: Callable[[], str], parts: Iterable[Var | int | None]) -> None:
        """A line of text; where it is too wide, its longest inner expressions get lines and names of their own."""
        inner = [a for a in parts if isinstance(a, Var) and a in self.inline]
        while len(text := make()) + 4 * self.depth > WIDTH and inner:
            longest = max(inner, key=lambda a: len(self.inline[a][0]))
            inner = [a for a in inner if a is not longest]
            self.spill(longest)
        self.line(text)

    def spill(self, v: Var) -> None:
        """A line and a name for an expression that was to stand in another."""
        text, _ = self.inline.pop(v)
        self.reads.pop(v)
        self.line(f"{self.names.of(v, self.stems[v])} = {text}")

    def comment(self, where: Where | None) -> None:
        place = (
            f"{re.sub(r'[^ -~]', '?', where.file.rsplit('/', 1)[-1])}:{where.line}" if where is not None else self.where
        )
        if place != self.where:
            self.where = place
            self.line(f"# {place}")

    def print(self) -> list[str]:
        self._constants()
        self.block(self.program.body, [])
        return self.lines

    def _constants(self) -> None:
        """Names for the constants that are not printed as bare numbers."""
        needed: dict[Var, None] = {}
        for stmt in walk(self.program.body):
            if isinstance(stmt, Op) and stmt.fn == "const":
                continue
            bare: set[Var] = set()
            if isinstance(stmt, Op):
                _, _, arithmetic = needs(template(stmt, self.program.constants))
                others = any(isinstance(a, Var) and a not in self.program.constants for a in stmt.args)
                bare = {
                    a
                    for k, a in enumerate(stmt.args)
                    if isinstance(a, Var)
                    and k in arithmetic
                    and others
                    and a in self.program.constants
                    and literal(self.program.constants[a]) is not None
                }
                bare -= {a for k, a in enumerate(stmt.args) if isinstance(a, Var) and k not in arithmetic}
            needed.update(dict.fromkeys(u for u in direct_uses(stmt) if u in self.program.constants and u not in bare))
        for v in needed:
            value = self.program.constants[v]
            stem = "k_" + str(value).replace("-", "m").replace(".", "_").replace("+", "")
            self.line(f"{self.names.of(v, stem)} = {typed(value)}")

    def block(self, block: list[Stmt], results: list[Var]) -> None:
        """A block whose results are read right after it."""
        outer, self.local = self.local, {u for s in block for u in direct_uses(s)} | set(results)
        for stmt in block:
            self.stmt(stmt)
        self.local = outer

    def stmt(self, stmt: Stmt) -> None:
        if isinstance(stmt, Op) and stmt.fn == "const":
            return
        if isinstance(stmt, Op) and self._inlined(stmt):
            return
        if not isinstance(stmt, Barrier):
            self.comment(stmt.where)
        match stmt:
            case Op():
                targets = ", ".join([self._target(stmt, o) for o in stmt.outs])
                self.fitted(lambda: f"{targets} = {self.expression(stmt)[0]}", stmt.args)
            case Load():
                self.fitted(lambda: self._load(stmt), (stmt.offset, stmt.mask))
            case Store():
                self.fitted(lambda: self._store(stmt), (stmt.offset, stmt.mask, stmt.value))
            case Barrier():
                self.line("tl.debug_barrier()")
            case Arrive():
                self.line("tl.debug_barrier()")
                self.line(f'{self.name(stmt.out)} = tl.atomic_add({self.names.buffer(stmt.buffer)}, 1, sem="acq_rel")')
            case For():
                self._for(stmt)
            case While():
                self._while(stmt)
            case If():
                self._if(stmt)

    def _load(self, stmt: Load) -> str:
        mask = f", mask={self.text(stmt.mask)}, other=0" if stmt.mask is not None else ""
        boolean = " != 0" if is_bool(stmt.buffer.dtype) else ""
        return f"{self.name(stmt.out)} = tl.load({self.pointer(stmt)}{mask}){boolean}"

    def _store(self, stmt: Store) -> str:
        mask = f", mask={self.text(stmt.mask)}" if stmt.mask is not None else ""
        value, level = self.operand(stmt.value)
        if is_bool(stmt.buffer.dtype):
            value = f"({value}).to(tl.int8)" if level < ATOM else f"{value}.to(tl.int8)"
        return f"tl.store({self.pointer(stmt)}, {value}{mask})"

    def _target(self, op: Op, out: Var) -> str:
        if not self.uses[out]:
            return "_"
        return self.names.of(out, out.hint or stem(op))

    def pointer(self, stmt: Load | Store) -> str:
        parts = [self.names.buffer(stmt.buffer)]
        if stmt.buffer.offset is not None:
            parts.append(self.text(stmt.buffer.offset))
        if not (isinstance(stmt.offset, int) and stmt.offset == 0):
            text, level = self.operand(stmt.offset)
            parts.append(text if level >= 12 else f"({text})")
        return " + ".join(parts)

    def _inlined(self, op: Op) -> bool:
        """Keep an operation's text for its only use, if that stands in the same block."""
        if len(op.outs) != 1 or op.outs[0].hint:
            return False
        out = op.outs[0]
        if self.uses[out] != 1 or out not in self.local:
            return False
        text, level = self.expression(op)
        if len(text) > 72 or op.fn in ("reduce", "scan", "gather", "pick", "arange"):
            return False
        self.inline[out] = (text, level)
        self.stems[out] = stem(op)
        self.reads[out] = frozenset().union(*(self.leaves(a) for a in op.args if isinstance(a, Var)))
        return True

    # --- control --------------------------------------------------------------------------------------
    def _start(self, params: list[Var], inits: list[Var]) -> None:
        for param, init in zip(params, inits, strict=True):
            self.line(f"{self.name(param)} = {self.text(init)}")

    def _for(self, stmt: For) -> None:
        self._start(stmt.params, stmt.inits)
        bounds = f"{stmt.start}, {stmt.stop}" if stmt.start or stmt.step != 1 else f"{stmt.stop}"
        step = f", {stmt.step}" if stmt.step != 1 else ""
        turns = f"range({bounds}{step})"
        if self.unrolls and _tiny(stmt):
            turns = f"tl.range({bounds}{step}, loop_unroll_factor={UNROLL})"
        self.line(f"for {self.name(stmt.index)} in {turns}:")
        self._body(stmt)

    def _body(self, stmt: For | While, late: frozenset[Var] = frozenset(), retest: bool = True) -> None:
        self.depth += 1
        count = len(self.lines)
        self.block(stmt.body, stmt.results)
        self._assign(stmt.params, stmt.results, late)
        if isinstance(stmt, While) and retest:
            self._test(stmt)
        if len(self.lines) == count:
            self.line("pass")
        self.depth -= 1

    def _assign(self, params: list[Var], results: list[Var], late: frozenset[Var] = frozenset()) -> None:
        """params = results, all at once: in an order in which none reads what was overwritten, else as a tuple.

        Those of ``late`` come after the others, through names for their next values where need be.
        """
        todo = [(p, r) for p, r in zip(params, results, strict=True) if r is not p]
        waiting: list[str] = []
        while todo:
            for k, (p, r) in enumerate(todo):
                if not any(p in self.leaves(other) for _, other in todo[:k] + todo[k + 1 :]):
                    value = self.text(r)
                    if p in late and any(q not in late for q, _ in todo):
                        following = self.names.of((p, "next"), f"next_{self.name(p)}")
                        waiting.append(f"{self.name(p)} = {following}")
                        self.line(f"{following} = {value}")
                    else:
                        self.line(f"{self.name(p)} = {value}")
                    todo.pop(k)
                    break
            else:
                cycle = min((self._cycle(todo, k) for k in range(len(todo))), key=len)
                self._together([todo[k] for k in sorted(cycle)])
                todo = [pair for k, pair in enumerate(todo) if k not in cycle]
        for line in waiting:
            self.line(line)

    def _cycle(self, todo: list[tuple[Var, Var]], k: int) -> set[int]:
        """The assignments that read what assignment ``k`` overwrites, those that read what these do, and so on."""
        found: set[int] = set()
        open_ = [k]
        while open_:
            j = open_.pop()
            if j not in found:
                found.add(j)
                open_ += [m for m, (_, r) in enumerate(todo) if m != j and todo[j][0] in self.leaves(r)]
        return found

    def _together(self, pairs: list[tuple[Var, Var]]) -> None:
        """Assignments at once: as a tuple, or where that is too wide, through names for the next values."""
        names = [self.name(p) for p, _ in pairs]
        values = [self.text(r) for _, r in pairs]
        line = f"{', '.join(names)} = {', '.join(values)}"
        if len(line) + 4 * self.depth <= WIDTH:
            self.line(line)
            return
        following = [self.names.of((p, "next"), f"next_{name}") for (p, _), name in zip(pairs, names, strict=True)]
        for target, value in (*zip(following, values, strict=True), *zip(names, following, strict=True)):
            self.line(f"{target} = {value}")

    def _while(self, stmt: While) -> None:
        assert stmt.cond is not None
        late = self._tested_last(stmt)
        self._start(stmt.params, stmt.inits)
        before = len(self.lines)
        if any(stmt.cond in defined(s) for s in stmt.test):
            self.names.of(stmt.cond, "go")
        self.block(stmt.test, [stmt.cond])
        self.comment_reset()
        if len(self.lines) == before:
            self.line(f"while {self.text(stmt.cond)}:")
            self._body(stmt, late, retest=False)
            return
        self._go_on(stmt.cond)
        self.line(f"while {self.name(stmt.cond)}:")
        self._body(stmt, late)

    def comment_reset(self) -> None:
        self.where = None

    def _tested_last(self, stmt: While) -> frozenset[Var]:
        """Put the carries last that only the loop's test reads, in place; these carries.

        MLIR drops their results, and Triton 3.6 then takes the results before them for others (docs/notes/triton.md).
        """
        inside = Counter(u for s in walk(stmt.test) for u in direct_uses(s)) + Counter((stmt.cond,))
        late = frozenset(p for p in stmt.params if self.uses[p] <= inside[p])
        order = sorted(range(len(stmt.params)), key=lambda k: stmt.params[k] in late)
        for name in ("params", "inits", "results"):
            setattr(stmt, name, [getattr(stmt, name)[k] for k in order])
        return late

    def _test(self, stmt: While) -> None:
        """The loop's test again, on the new carries."""
        assert stmt.cond is not None
        for s in stmt.test:
            for v in s.outs if isinstance(s, Op) else ():
                self.inline.pop(v, None)
        self.block(stmt.test, [stmt.cond])
        self._go_on(stmt.cond)

    def _go_on(self, cond: Var) -> None:
        """A line for a loop's condition, if it has none yet."""
        if self.text(cond) != self.name(cond):
            self.line(f"{self.name(cond)} = {self.text(cond)}")

    def _if(self, stmt: If) -> None:
        self.line(f"if {self.text(stmt.cond)}:")
        for block, results in ((stmt.then, stmt.then_results), (stmt.other, stmt.other_results)):
            if block is stmt.other:
                if not block and not results:
                    return
                self.line("else:")
            self.depth += 1
            count = len(self.lines)
            self.comment_reset()
            self.block(block, results)
            for out, r in zip(stmt.outs, results, strict=True):
                self.line(f"{self.name(out)} = {self.text(r)}")
            if len(self.lines) == count:
                self.line("pass")
            self.depth -= 1
