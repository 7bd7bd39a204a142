"""Triton text of pure operations: templates over operand names ``_0``, ``_1``, ... and the parentheses they need."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache

import numpy as np

from onelaunch.ir.scalars import SCALARS, text
from onelaunch.ir.types import TRITON_NAMES, is_bool, is_float
from onelaunch.place.nodes import Op, Var

ATOM = 100
_BINARY = {
    ast.Mult: 13,
    ast.Div: 13,
    ast.FloorDiv: 13,
    ast.Mod: 13,
    ast.Add: 12,
    ast.Sub: 12,
    ast.LShift: 11,
    ast.RShift: 11,
    ast.BitAnd: 10,
    ast.BitXor: 9,
    ast.BitOr: 8,
}
UNARY, COMPARE = 14, 7


@cache
def needs(template: str) -> tuple[int, dict[int, int], frozenset[int]]:
    """Of a template: its own precedence, the precedence each operand needs, and the operands of arithmetic."""
    tree = ast.parse(template, mode="eval").body
    wanted: dict[int, int] = {}
    arithmetic: set[int] = set()

    def visit(node: ast.AST, need: int, parent: ast.AST | None) -> None:
        if isinstance(node, ast.Name) and node.id.startswith("_") and node.id[1:].isdigit():
            k = int(node.id[1:])
            wanted[k] = max(need, wanted.get(k, 0))
            if isinstance(parent, ast.BinOp | ast.Compare):
                arithmetic.add(k)
        elif isinstance(node, ast.BinOp):
            level = _BINARY[type(node.op)]
            visit(node.left, level, node)
            visit(node.right, level + 1, node)
        elif isinstance(node, ast.Compare):
            for child in (node.left, *node.comparators):
                visit(child, COMPARE + 1, node)
        elif isinstance(node, ast.UnaryOp):
            visit(node.operand, UNARY, node)
        elif isinstance(node, ast.Attribute):
            visit(node.value, ATOM, node)
        elif isinstance(node, ast.Subscript):
            visit(node.value, ATOM, node)
            visit(node.slice, 0, node)
        elif isinstance(node, ast.Call):
            visit(node.func, ATOM, node)
            for child in (*node.args, *(k.value for k in node.keywords)):
                visit(child, 0, node)
        else:
            for part in ast.iter_child_nodes(node):
                visit(part, 0, node)

    visit(tree, 0, None)
    return _level(tree), wanted, frozenset(arithmetic)


def _level(tree: ast.expr) -> int:
    if isinstance(tree, ast.BinOp):
        return _BINARY[type(tree.op)]
    if isinstance(tree, ast.Compare):
        return COMPARE
    return UNARY if isinstance(tree, ast.UnaryOp) else ATOM


def triton_type(dtype: np.dtype) -> str:
    return f"tl.{TRITON_NAMES[dtype]}"


#: Shifts by less than the width are operators; of signed integers ``>>`` is the arithmetic one.
_SHIFTS = {"shift_left": "_0 << _1", "shift_right_logical": "_0 >> _1", "shift_right_arithmetic": "_0 >> _1"}


def template(op: Op, constants: Mapping[Var, np.generic]) -> str:
    """The text of an operation, some operands of which are constants."""
    out = op.outs[0]
    names = [f"_{k}" for k in range(len(op.args))]
    if op.fn in _SHIFTS and isinstance(by := op.args[1], Var) and by in constants:
        natural = out.dtype.kind == ("i" if op.fn == "shift_right_arithmetic" else "u") or op.fn == "shift_left"
        if natural and out.dtype.itemsize >= 4 and 0 <= int(constants[by]) < out.dtype.itemsize * 8:
            return _SHIFTS[op.fn]
    if op.fn in SCALARS:
        return text(op.fn, names, [a.dtype for a in op.args if isinstance(a, Var)], out.dtype)
    return _INDEX[op.fn] if op.fn in _INDEX else _SHAPES[op.fn](op, out)


_INDEX = {
    "index_add": "_0 + _1",
    "index_sub": "_0 - _1",
    "index_mul": "_0 * _1",
    "index_div": "_0 // _1",
    "index_mod": "_0 % _1",
    "index_min": "tl.minimum(_0, _1)",
    "index_max": "tl.maximum(_0, _1)",
    "index_lt": "_0 < _1",
    "index_ge": "_0 >= _1",
    "index_eq": "_0 == _1",
    "argmax_pair": "combine_argmax(_0, _1, _2, _3)",
    "argmin_pair": "combine_argmin(_0, _1, _2, _3)",
}


def _program_id(op: Op, out: Var) -> str:
    return "tl.program_id(0)" + (".to(tl.int64)" if out.dtype.itemsize == 8 else "")


def _spread(op: Op, out: Var) -> str:
    positions, rank = op.attrs
    return "_0[" + ", ".join(":" if k in positions else "None" for k in range(rank)) + "]"  # type: ignore[operator,call-overload]


def _shape(op: Op, out: Var) -> str:
    return (
        f"tl.reshape(_0, {list(out.shape)})"
        if out.shape
        else "tl.sum(_0, 0)"
        if _wide(out.dtype)
        else f"tl.max(_0.to(tl.int32), 0).to({triton_type(out.dtype)})"
    )


def _wide(dtype: np.dtype) -> bool:
    return dtype.itemsize >= 4


def _reduce(op: Op, out: Var) -> str:
    monoid, axis = op.attrs
    if is_bool(out.dtype):
        function = {
            "or": "tl.max",
            "max": "tl.max",
            "add": "tl.max",
            "and": "tl.min",
            "min": "tl.min",
            "mul": "tl.min",
            "xor": "tl.xor_sum",
        }[str(monoid)]
        return f"{function}(_0.to(tl.int32), axis={axis}) != 0"
    if monoid == "add":
        return (
            f"tl.sum(_0, axis={axis})" if _wide(out.dtype) else f"tl.sum(_0, axis={axis}).to({triton_type(out.dtype)})"
        )
    if monoid in ("max", "min") and not is_float(out.dtype) and _wide(out.dtype):
        return f"tl.{monoid}(_0, axis={axis})"
    return f"tl.reduce(_0, {axis}, combine_{monoid})"


def _scan(op: Op, out: Var) -> str:
    monoid, axis, reverse = op.attrs
    return f"tl.associative_scan(_0, {axis}, combine_{monoid}" + (", reverse=True)" if reverse else ")")


def _dot(op: Op, out: Var) -> str:
    added = ", _2" if len(op.args) == 3 else ""
    return f'tl.dot(_0, _1{added}, input_precision="{op.attrs[0]}", out_dtype={triton_type(out.dtype)})'


def _saturate(op: Op, out: Var) -> str:
    arg = op.args[0]
    assert isinstance(arg, Var)
    high = 2**63 - 1 if out.dtype.itemsize == 8 else 2**31 - 1
    if arg.dtype.kind == "u":
        return f"tl.minimum(_0, {high}).to({triton_type(out.dtype)})"
    return f"tl.minimum(tl.maximum(_0, {-high - 1}), {high}).to({triton_type(out.dtype)})"


_SHAPES = {
    "program_id": _program_id,
    "arange": lambda op, out: f"tl.arange(0, {op.attrs[0]})",
    "spread": _spread,
    "squeeze": _shape,
    "pick": lambda op, out: f"pick(_0, _1, _2, {op.attrs[0]})",
    "permute": lambda op, out: f"tl.permute(_0, {list(op.attrs[0])})",
    "broadcast": lambda op, out: f"tl.broadcast_to(_0, {list(out.shape)})",
    "dot": _dot,
    "gather": lambda op, out: f"tl.gather(_0, _1, axis={op.attrs[0]})",
    "reduce": _reduce,
    "reduce_pair": lambda op, out: f"tl.reduce((_0, _1), {op.attrs[1]}, combine_{op.attrs[0]})",
    "scan": _scan,
    "index_saturate": _saturate,
    "index_to": lambda op, out: f"tl.cast(_0, {triton_type(out.dtype)})",
    "index_cast": lambda op, out: f"_0.to({triton_type(out.dtype)})",
}


def literal(value: np.generic) -> str | None:
    """Text of a constant next to an operator, or None where a bare number would change its type or value."""
    dtype = value.dtype
    if is_float(dtype):
        if dtype.itemsize == 2 or not np.isfinite(value):
            return None
        return _float(value)  # an operator gives a bare number the dtype of its tensor, f64 too
    if dtype.kind == "u" and dtype.itemsize == 8 and int(value) >= 2**31:
        return hex(int(value))
    if dtype.kind in "iu" and dtype.itemsize >= 4 and -(2**31) < int(value) < 2**31:
        return str(int(value))
    return None


def _float(value: np.generic) -> str:
    text = str(value)
    return text if "e" in text or "." in text else f"{text}.0"


def typed(value: np.generic) -> str:
    """A constant with its type spelled out."""
    dtype = value.dtype
    if is_bool(dtype):
        number = str(bool(value))
    elif is_float(dtype):
        number = f'float("{float(value)}")' if not np.isfinite(value) else _float(value)
    else:
        number = str(int(value))
    return f"tl.full((), {number}, {triton_type(dtype)})"
