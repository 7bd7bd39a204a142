"""Rows: linear algebra of small matrices. Signs of eigenvectors are a choice, so they are compared by products."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jax import lax

from rows.row import Row, i32, normal, row


def positive(*shape: int, seed: int = 0) -> np.ndarray:
    """Symmetric positive definite matrices."""
    a = normal(*shape, seed=seed)
    return a @ np.swapaxes(a, -1, -2) + shape[-1] * np.eye(shape[-1], dtype=np.float32)


SPD3, SPD7, SPDS = positive(3, 3), positive(7, 7), positive(2, 5, 5)
A3, A7, BATCH = normal(3, 3), normal(7, 7), normal(2, 5, 5)
LOOSE = {"ulps": 256, "floor": 1}
IS_LOWER = np.tril(SPD7)


def triangular(**how: Any) -> Any:
    return lambda a, b: lax.linalg.triangular_solve(a, b, **how)


def eigen(a: Any) -> Any:
    w, v = jnp.linalg.eigh(a)
    return w, (v * w[..., None, :]) @ v.mT, v.mT @ v


def singular(full: bool) -> Any:
    def products(a: Any) -> Any:
        u, s, vt = jnp.linalg.svd(a, full_matrices=full)
        k = s.shape[-1]
        return s, (u[..., :, :k] * s[..., None, :]) @ vt[..., :k, :], u.mT @ u, vt @ vt.mT

    return products


def householder(a: Any) -> Any:
    q, r = lax.linalg.geqrf(a) if hasattr(lax.linalg, "geqrf") else jnp.linalg.qr(a, mode="raw")
    return q, r


ROWS: list[Row] = [
    row("cholesky_1", jnp.linalg.cholesky, SPD3[:1, :1]),
    row("cholesky_3", jnp.linalg.cholesky, SPD3, **LOOSE),
    row("cholesky_7", jnp.linalg.cholesky, SPD7, **LOOSE),
    row("cholesky_batch", jnp.linalg.cholesky, SPDS, **LOOSE),
    row("cholesky_fails", jnp.linalg.cholesky, np.stack([SPDS[0], -SPDS[1]]), **LOOSE),
    row("cholesky_f64", jnp.linalg.cholesky, SPD7.astype(np.float64), x64=True, **LOOSE),
    row("cholesky_gradient", jax.grad(lambda a: jnp.linalg.cholesky(a).sum()), SPD3, ulps=2048, floor=1),
    row("triangular_left", triangular(left_side=True, lower=True), IS_LOWER, A7, **LOOSE),
    row("triangular_right", triangular(), SPD7, A7, **LOOSE),
    row("triangular_transposed", triangular(left_side=True, transpose_a=True), SPD7, A7, **LOOSE),
    row("triangular_right_lower", triangular(lower=True, transpose_a=True), SPD7, A7[:2], **LOOSE),
    row(
        "triangular_unit", triangular(left_side=True, unit_diagonal=True, lower=True), IS_LOWER / 9, A7[:, :1], **LOOSE
    ),
    row("triangular_small", triangular(left_side=True, lower=True), SPD3, A3, **LOOSE),
    row("triangular_batch", triangular(left_side=True), SPDS, BATCH, **LOOSE),
    row("triangular_vector", lambda a, b: jsl.solve_triangular(a, b, lower=True), SPD7, A7[0], **LOOSE),
    row("lu", lambda a: lax.linalg.lu(a), A7, **LOOSE),
    row("lu_tall", lambda a: lax.linalg.lu(a), A7[:, :3], **LOOSE),
    row("lu_wide", lambda a: lax.linalg.lu(a), A7[:3], **LOOSE),
    row("lu_batch", lambda a: lax.linalg.lu(a), BATCH, **LOOSE),
    row("lu_singular", lambda a: lax.linalg.lu(a), np.ones((3, 3), np.float32), **LOOSE),
    row("pivots", lambda p: lax.linalg.lu_pivots_to_permutation(p, 5), i32(3, 3, 2)),
    row("pivots_batch", lambda p: lax.linalg.lu_pivots_to_permutation(p, 4), i32(3, 3, 2, 1, 1, 3).reshape(2, 3)),
    row("solve", jnp.linalg.solve, A7, A7[0], ulps=4096, floor=1),
    row("solve_batch", jnp.linalg.solve, SPDS, BATCH, **LOOSE),
    row("inverse", jnp.linalg.inv, SPD3, **LOOSE),
    row("determinant", lambda a: (jnp.linalg.det(a), jnp.linalg.slogdet(a)), A7, **LOOSE),
    row("cho_solve", lambda a, b: jsl.cho_solve(jsl.cho_factor(a), b), SPD7, A7[0], **LOOSE),
    row("qr", jnp.linalg.qr, A7, **LOOSE),
    row("qr_tall", jnp.linalg.qr, A7[:, :3], **LOOSE),
    row("qr_wide", jnp.linalg.qr, A7[:3], **LOOSE),
    row("qr_full", lambda a: jnp.linalg.qr(a, mode="complete"), A7[:, :3], **LOOSE),
    row("qr_batch", jnp.linalg.qr, BATCH, **LOOSE),
    row("qr_raw", lambda a: jnp.linalg.qr(a, mode="raw"), A7[:, :3], **LOOSE),
    row("householder", lambda a, t: lax.linalg.householder_product(a, t), A7[:, :3] / 9, A7[0, :3] / 9, **LOOSE),
    row(
        "reflect",
        lambda a, t, c: [lax.linalg.ormqr(a, t, c, left=s, transpose=f) for s in (True, False) for f in (True, False)],
        A7[:, :3] / 9,
        A7[0, :3] / 9,
        A7,
        **LOOSE,
    ),
    row("eigh_1", eigen, SPD3[:1, :1]),
    row("eigh_2", eigen, SPD3[:2, :2], **LOOSE),
    row("eigh_5", eigen, positive(5, 5), **LOOSE),
    row("eigh_8", eigen, A7[:6, :6] + A7[:6, :6].T, **LOOSE),
    row("eigh_batch", eigen, SPDS, **LOOSE),
    row("eigh_diagonal", eigen, np.diag(np.asarray([3, 1, 2], np.float32)), **LOOSE),
    row("eigh_zero", eigen, np.zeros((3, 3), np.float32)),
    row("eigh_f64", eigen, SPD7.astype(np.float64), x64=True, **LOOSE),
    row("eigenvalues", jnp.linalg.eigvalsh, SPD7, **LOOSE),
    row("svd_square", singular(True), A3, **LOOSE),
    row("svd_tall", singular(False), A7[:, :3], **LOOSE),
    row("svd_wide", singular(True), A7[:2], **LOOSE),
    row("svd_low_rank", singular(True), np.ones((4, 3), np.float32), **LOOSE),
    row("singular_values", lambda a: jnp.linalg.svd(a, compute_uv=False), A7, **LOOSE),
    row("pseudo_inverse", jnp.linalg.pinv, A7[:, :3], ulps=1024, floor=1),
    row("tridiagonal", lambda x: lax.linalg.tridiagonal_solve(x[0], x[1] + 5, x[2], x.T), A7, **LOOSE),
    row(
        "tridiagonal_batch", jax.vmap(lambda x: lax.linalg.tridiagonal_solve(x[0], x[1] + 5, x[2], x.T)), BATCH, **LOOSE
    ),
    row("expm", jsl.expm, A3, ulps=2048, floor=1),
]
