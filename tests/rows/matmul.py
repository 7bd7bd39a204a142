"""Rows: contractions and convolutions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from rows.row import Row, integers, normal, row

A, B = normal(3, 5), normal(5, 4, seed=1)
LEFT, RIGHT = normal(2, 3, 4), normal(4, 2, 5, seed=1)
HALF = ml_dtypes.bfloat16
SUMS = {"floor": 1, "ulps": 16}


def general(contract: Any, batch: Any, **how: Any) -> Any:
    return lambda x, y: lax.dot_general(x, y, (contract, batch), **how)


def convolution(strides: Any = (1, 1), padding: Any = "SAME", **how: Any) -> Any:
    return lambda x, k: lax.conv_general_dilated(x, k, strides, padding, **how)


IMAGE, KERNEL = normal(1, 2, 5, 6), normal(3, 2, 2, 3, seed=1)

ROWS: list[Row] = [
    row("dot", jnp.dot, A, B, **SUMS),
    row("dot_vector", jnp.dot, A, B[:, 0], **SUMS),
    row("dot_inner", jnp.dot, A[0], B[:, 0], **SUMS),
    row("dot_outer", jnp.outer, A[0], B[0], **SUMS),
    row("dot_one", jnp.dot, A[:1, :1], B[:1, :1]),
    row("dot_empty", jnp.dot, A[:, :0], B[:0]),
    row("dot_batched", general(((2,), (0,)), ((0,), (1,))), LEFT, RIGHT, **SUMS),
    row("dot_two_contracted", general(((0, 2), (1, 0)), ((), ())), LEFT, RIGHT, **SUMS),
    row("dot_transposed", general(((0,), (0,)), ((), ())), A, A[:, :2], **SUMS),
    row("dot_einsum", lambda x, y: jnp.einsum("bik,kbj->ijb", x, y), LEFT, RIGHT, **SUMS),
    row("dot_vmapped", jax.vmap(jnp.dot, (0, None)), LEFT, B[:4], **SUMS),
    row("dot_bf16", jnp.dot, A.astype(HALF), B.astype(HALF), floor=1),
    row("dot_f16", jnp.dot, A.astype(np.float16), B.astype(np.float16), floor=1),
    row(
        "dot_bf16_to_f32",
        general(((1,), (0,)), ((), ()), preferred_element_type=jnp.float32),
        A.astype(HALF),
        B.astype(HALF),
        **SUMS,
    ),
    row("dot_deep", jnp.dot, normal(16, 40), normal(40, 17, seed=1), **SUMS),
    row(
        "dot_product_summed",
        lambda x, y: (jnp.abs(x)[:, :, None] * jnp.abs(y)[None]).sum(1),
        normal(16, 16),
        normal(16, 16),
        **SUMS,
    ),
    row("dot_f64", jnp.dot, A.astype(np.float64), B.astype(np.float64), x64=True, **SUMS),
    row("dot_int", jnp.dot, integers(-(2**20), 2**20, 3, 5), integers(-(2**20), 2**20, 5, 4, seed=1)),
    row(
        "dot_byte",
        general(((1,), (0,)), ((), ()), preferred_element_type=jnp.int32),
        integers(-99, 99, 3, 5, dtype=np.int8),
        integers(-99, 99, 5, 4, dtype=np.int8),
    ),
    row("dot_bool", jnp.dot, integers(0, 2, 3, 5).astype(bool), integers(0, 2, 5, 4, seed=1).astype(bool)),
    row("dot_highest", lambda x, y: jnp.dot(x, y, precision="highest"), A, B, **SUMS),
    row("dot_gradient", jax.grad(lambda x, y: (x @ y).sum() ** 2), A, B, **SUMS),
    row("convolve", convolution(), IMAGE, KERNEL, **SUMS),
    row("convolve_strided", convolution((2, 1), ((1, 0), (2, 1)), rhs_dilation=(1, 2)), IMAGE, KERNEL, **SUMS),
    row("convolve_dilated", convolution((1, 1), ((1, 0), (0, 1)), lhs_dilation=(2, 1)), IMAGE, KERNEL, **SUMS),
    row("convolve_grouped", convolution(feature_group_count=2), IMAGE, normal(4, 1, 2, 2), **SUMS),
    row(
        "convolve_last",
        convolution(dimension_numbers=("NHWC", "HWIO", "NHWC")),
        normal(2, 4, 5, 3),
        normal(2, 2, 3, 2),
        **SUMS,
    ),
    row("convolve_line", lambda x, y: jnp.convolve(x, y, mode="same"), normal(9), normal(3), **SUMS),
]
