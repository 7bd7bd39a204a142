"""Contractions."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from onelaunch.ir.builder import Builder
from onelaunch.ir.nodes import Value
from onelaunch.ir.types import BFLOAT16
from onelaunch.ops.table import REFUSED, Params, rule

HALF = np.dtype("float16")
Preset = jax.lax.DotAlgorithmPreset

#: presets that round the operands first
ROUNDED = {
    Preset.F16_F16_F16: HALF,
    Preset.F16_F16_F32: HALF,
    Preset.BF16_BF16_BF16: BFLOAT16,
    Preset.BF16_BF16_F32: BFLOAT16,
}

REFUSED["ragged_dot_general"] = ("a ragged dot has groups of dynamic size", "Use one dot for each group.")
REFUSED["scaled_matmul"] = ("block-scaled operands have no rule", "It stays in XLA.")


@rule("dot_general")
def dot_general(b: Builder, params: Params, lhs: Value, rhs: Value) -> Value:
    contract, batch = params["dimension_numbers"]
    dtype = np.dtype(params["_out"][0].dtype)
    precision = params["precision"]
    rounded = ROUNDED.get(precision) if isinstance(precision, Preset) else None
    if rounded is not None:
        lhs, rhs = b.cast(lhs, rounded), b.cast(rhs, rounded)
    common = np.result_type(lhs.dtype, rhs.dtype) if lhs.dtype != rhs.dtype else lhs.dtype
    return b.dot(b.cast(lhs, common), b.cast(rhs, common), contract, batch, dtype, tensor_precision(precision))


def tensor_precision(precision: Any) -> str:
    """ "tf32" only where the user named a TF32 algorithm; every other precision is exact f32 products."""
    return "tf32" if precision == Preset.TF32_TF32_F32 else "ieee"
