"""Tidy the memory-level form: drop what nobody reads, move what does not change out of loops."""

from __future__ import annotations

import math

from onelaunch.place.nodes import (
    Arrive,
    Barrier,
    For,
    If,
    Load,
    Op,
    Stmt,
    Store,
    Var,
    While,
    defined,
    direct_uses,
    inner_blocks,
    walk,
)

#: Bytes of tensors that may be moved out of loops and held in registers through them.
HELD = 96 * 1024
#: Scalars loaded that may be held so.
HELD_SCALARS = 64


def tidy(block: list[Stmt]) -> None:
    """Both passes, in place."""
    _Hoist().block(block)
    drop_dead(block)


def drop_dead(block: list[Stmt]) -> None:
    """Remove pure statements whose results are never read, and loop parameters that only feed themselves."""
    while True:
        needed = _needed(block)
        if not _sweep(block, needed):
            return


def _needed(block: list[Stmt]) -> set[Var]:
    """Vars that a store, a condition or (through pure statements) either of them reads."""
    source: dict[Var, list[Var]] = {}
    roots: list[Var] = []
    for stmt in walk(block):
        match stmt:
            case Store():
                roots += direct_uses(stmt)
            case Op() | Load():
                for out in defined(stmt):
                    source.setdefault(out, []).extend(direct_uses(stmt))
            case For() | While():
                for param, init, result in zip(stmt.params, stmt.inits, stmt.results, strict=True):
                    source.setdefault(param, []).extend((init, result))
                if isinstance(stmt, While) and stmt.cond is not None:
                    roots.append(stmt.cond)
            case If():
                roots.append(stmt.cond)
                for out, a, b in zip(stmt.outs, stmt.then_results, stmt.other_results, strict=True):
                    source.setdefault(out, []).extend((a, b))
            case Barrier() | Arrive():
                pass
    needed: set[Var] = set()
    while roots:
        var = roots.pop()
        if var not in needed:
            needed.add(var)
            roots += source.get(var, [])
    return needed


def _sweep(block: list[Stmt], needed: set[Var]) -> bool:
    changed = False
    for stmt in list(block):
        for inner in inner_blocks(stmt):
            changed |= _sweep(inner, needed)
        match stmt:
            case Op() | Load():
                if not any(out in needed for out in defined(stmt)):
                    block.remove(stmt)
                    changed = True
            case For() | While():
                keep = [k for k, param in enumerate(stmt.params) if param in needed]
                if len(keep) < len(stmt.params):
                    for name in ("params", "inits", "results"):
                        setattr(stmt, name, [getattr(stmt, name)[k] for k in keep])
                    changed = True
                if isinstance(stmt, For) and not stmt.params and not stmt.body:
                    block.remove(stmt)
                    changed = True
            case If():
                keep = [k for k, out in enumerate(stmt.outs) if out in needed]
                if len(keep) < len(stmt.outs):
                    for name in ("outs", "then_results", "other_results"):
                        setattr(stmt, name, [getattr(stmt, name)[k] for k in keep])
                    changed = True
                if not stmt.outs and not stmt.then and not stmt.other:
                    block.remove(stmt)
                    changed = True
            case _:
                pass
    return changed


class _Hoist:
    """Loop-invariant code motion with a budget for what is held in registers."""

    def __init__(self) -> None:
        self.bytes = 0
        self.scalars = 0

    def block(self, block: list[Stmt]) -> None:
        for stmt in list(block):
            for inner in inner_blocks(stmt):
                self.block(inner)
            if isinstance(stmt, For | While):
                moved = self.loop(stmt)
                at = block.index(stmt)
                block[at:at] = moved

    def loop(self, stmt: For | While) -> list[Stmt]:
        """The statements that leave a loop, in order."""
        inside = {out for inner in inner_blocks(stmt) for s in walk(inner) for out in defined(s)}
        inside |= {s.index for inner in inner_blocks(stmt) for s in walk(inner) if isinstance(s, For)}
        inside |= set(stmt.params)
        if isinstance(stmt, For):
            inside.add(stmt.index)
        moved: list[Stmt] = []
        for inner in inner_blocks(stmt):
            for s in list(inner):
                if self._may_leave(s) and not any(u in inside for u in direct_uses(s)):
                    inner.remove(s)
                    moved.append(s)
                    inside -= set(defined(s))
        return moved

    def _may_leave(self, stmt: Stmt) -> bool:
        if isinstance(stmt, Load):
            return stmt.buffer.role == "in" and self._afford(stmt.out)
        return isinstance(stmt, Op) and all(self._afford(out) for out in stmt.outs)

    def _afford(self, out: Var) -> bool:
        size = math.prod(out.shape)
        if size < 32:
            self.scalars += 1
            return self.scalars <= HELD_SCALARS * 8
        if self.bytes + size * out.dtype.itemsize > HELD:
            return False
        self.bytes += size * out.dtype.itemsize
        return True
