"""Linear algebra of small matrices, as plain JAX traced again: loops over rows with whole-row updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from onelaunch.ir.builder import Builder
from onelaunch.ir.nodes import Value
from onelaunch.ops import eigen
from onelaunch.ops.table import REFUSED, Params, Rule, refuse, retrace, rule

#: matrices up to this size are written out element by element
SMALL = 4

XLA_FIX = "It stays in XLA; move it out of the fused function if it is not in a loop."
for _name in ("eig", "schur", "hessenberg", "tridiagonal", "cholesky_update", "geqp3", "symmetric_product"):
    REFUSED[_name] = ("this factorisation has no rule", XLA_FIX)


def matrix_rule(name: str) -> Callable[[Rule], Rule]:
    """A rule of matrices: its own code sees none without elements, whose results are empty or XLA's."""

    def register(fn: Rule) -> Rule:
        def of_elements(b: Builder, params: Params, *xs: Value) -> Value | Sequence[Value]:
            if all(x.size for x in xs):
                return fn(b, params, *xs)
            if any(aval.size for aval in params["_out"]):
                refuse(b, name, "one of its operands has no elements", XLA_FIX)
            return [b.full(aval.shape, 0, aval.dtype) for aval in params["_out"]]

        return rule(name)(of_elements)

    return register


def batched(fun: Callable[..., Any], depth: int) -> Callable[..., Any]:
    """``fun`` over ``depth`` leading dims of every operand."""
    for _ in range(depth):
        fun = jax.vmap(fun)
    return fun


def row(x: jax.Array, i: jax.Array) -> jax.Array:
    return lax.dynamic_index_in_dim(x, i, 0, keepdims=False)


def set_row(x: jax.Array, i: jax.Array, new: jax.Array) -> jax.Array:
    return lax.dynamic_update_index_in_dim(x, new, i, 0)


# --- cholesky --------------------------------------------------------------------------------------------


def cholesky_matrix(a: jax.Array) -> jax.Array:
    """The lower factor; all NaN where a pivot is not positive."""
    n = a.shape[0]
    factor, positive = cholesky_small(a) if n <= SMALL else cholesky_loop(a)
    return jnp.where(positive, factor, jnp.full_like(a, jnp.nan))


def cholesky_small(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    n = a.shape[0]
    low: dict[tuple[int, int], jax.Array] = {}
    pivots = []
    for j in range(n):
        for i in range(j, n):
            rest = a[i, j]
            for k in range(j):
                rest = rest - low[i, k] * low[j, k]
            if i == j:
                pivots.append(rest)
            low[i, j] = jnp.sqrt(rest) if i == j else rest / low[j, j]
    zero = jnp.zeros((), a.dtype)
    return jnp.stack([jnp.stack([low.get((i, j), zero) for j in range(n)]) for i in range(n)]), jnp.all(
        jnp.stack(pivots) > 0
    )


def cholesky_loop(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Row j of the transposed factor is row j over the root of its pivot; its square is taken from the rows after it.

    Nothing is summed across lanes: rows above j are done, and of a row only what stands right of the diagonal counts.
    """
    n = a.shape[0]
    lane = lax.iota(jnp.int32, n)

    def step(j: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        upper, positive = state
        line = row(upper, j)
        pivot = row(line, j)
        new = jnp.where(lane >= j, line / jnp.sqrt(pivot), jnp.zeros_like(line))
        rest = jnp.where((lane > j)[:, None], upper - new[:, None] * new[None, :], upper)
        return set_row(rest, j, new), positive & (pivot > 0)

    upper, positive = lax.fori_loop(0, n, step, (a.T, jnp.bool_(True)))
    return jnp.tril(upper.T), positive


@matrix_rule("cholesky")
def cholesky(b: Builder, params: Params, a: Value) -> list[Value]:
    return retrace(b, over_matrices, a, fun=cholesky_matrix)


def over_matrices(*xs: jax.Array, fun: Callable[..., Any], **static: Any) -> Any:
    """``fun`` of matrices (the first operand's last two dims) over the leading dims."""
    if xs[0].size == 0:
        shapes = jax.eval_shape(batched(lambda *ys: fun(*ys, **static), xs[0].ndim - 2), *xs)
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return batched(lambda *ys: fun(*ys, **static), xs[0].ndim - 2)(*xs)


# --- triangular solve --------------------------------------------------------------------------------------


def solve_matrix(a: jax.Array, b: jax.Array, lower: bool, unit: bool) -> jax.Array:
    """x with a x = b; only the triangle named is read."""
    n = a.shape[0]
    return solve_small(a, b, lower, unit) if n <= SMALL else solve_loop(a, b, lower, unit)


def solve_small(a: jax.Array, b: jax.Array, lower: bool, unit: bool) -> jax.Array:
    n = a.shape[0]
    rows: dict[int, jax.Array] = {}
    for i in range(n) if lower else reversed(range(n)):
        rest = b[i]
        for k in rows if lower else reversed(rows):
            rest = rest - a[i, k] * rows[k]
        rows[i] = rest if unit else rest / a[i, i]
    return jnp.stack([rows[i] for i in range(n)])


def solve_loop(a: jax.Array, b: jax.Array, lower: bool, unit: bool) -> jax.Array:
    n = a.shape[0]
    lane = lax.iota(jnp.int32, n)

    def step(at: jax.Array, x: jax.Array) -> jax.Array:
        """Row i of x is found, and taken from the rows still to come, without a sum across lanes."""
        i = at if lower else n - 1 - at
        found = row(x, i) if unit else row(x, i) / lax.dynamic_slice(a, (i, i), (1, 1))[0]
        column = lax.dynamic_index_in_dim(a, i, 1, keepdims=False)
        open_rows = (lane > i if lower else lane < i)[:, None]
        return set_row(jnp.where(open_rows, x - column[:, None] * found[None, :], x), i, found)

    return lax.fori_loop(0, n, step, b)


def triangular(a: jax.Array, b: jax.Array, *, left: bool, lower: bool, transpose: bool, unit: bool) -> jax.Array:
    swap = transpose if left else not transpose
    a = a.mT if swap else a
    lower = lower != swap
    b = b if left else b.mT
    x = over_matrices(a, b, fun=solve_matrix, lower=lower, unit=unit)
    return x if left else x.mT


@matrix_rule("triangular_solve")
def triangular_solve(b: Builder, params: Params, a: Value, rhs: Value) -> list[Value]:
    left, lower = params["left_side"], params["lower"]
    transpose, unit = params["transpose_a"], params["unit_diagonal"]
    return retrace(b, triangular, a, rhs, left=left, lower=lower, transpose=bool(transpose), unit=unit)


# --- lu ----------------------------------------------------------------------------------------------------


def swap_rows(x: jax.Array, i: jax.Array, j: jax.Array) -> jax.Array:
    first, second = row(x, i), row(x, j)
    return set_row(set_row(x, i, second), j, first)


def lu_matrix(a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Packed factors, pivot rows and the permutation, by partial pivoting."""
    m, n = a.shape
    down, across = lax.iota(jnp.int32, m), lax.iota(jnp.int32, n)

    def step(k: jax.Array, state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        a, pivots, order = state
        column = lax.dynamic_index_in_dim(a, k, 1, keepdims=False)
        best = jnp.argmax(jnp.where(down >= k, jnp.abs(column), -jnp.ones_like(column))).astype(jnp.int32)
        a, order = swap_rows(a, k, best), swap_rows(order, k, best)
        line = row(a, k)
        column, pivot = lax.dynamic_index_in_dim(a, k, 1, keepdims=False), row(line, k)
        below = down > k
        factor = jnp.where(below & (pivot != 0), column / pivot, column)
        a = a - jnp.where(below, factor, 0)[:, None] * jnp.where(across > k, line, 0)[None, :]
        return lax.dynamic_update_index_in_dim(a, factor, k, 1), set_row(pivots, k, best), order

    pivots = jnp.zeros((min(m, n),), jnp.int32)
    return lax.fori_loop(0, min(m, n), step, (a, pivots, down))


@matrix_rule("lu")
def lu(b: Builder, params: Params, a: Value) -> list[Value]:
    return retrace(b, over_matrices, a, fun=lu_matrix)


def permutation_of(pivots: jax.Array, size: int) -> jax.Array:
    def step(k: jax.Array, order: jax.Array) -> jax.Array:
        return swap_rows(order, k, row(pivots, k))

    return lax.fori_loop(0, pivots.shape[0], step, lax.iota(pivots.dtype, size))


def permutations(pivots: jax.Array, size: int) -> jax.Array:
    return batched(lambda p: permutation_of(p, size), pivots.ndim - 1)(pivots)


@matrix_rule("lu_pivots_to_permutation")
def lu_pivots_to_permutation(b: Builder, params: Params, pivots: Value) -> list[Value]:
    return retrace(b, permutations, pivots, size=params["permutation_size"])


# --- qr ----------------------------------------------------------------------------------------------------


def geqrf_matrix(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Householder vectors under R, and their factors, with LAPACK's signs."""
    m, n = a.shape
    down, across = lax.iota(jnp.int32, m), lax.iota(jnp.int32, n)

    def step(k: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        a, taus = state
        column = lax.dynamic_index_in_dim(a, k, 1, keepdims=False)
        alpha = row(column, k)
        tail = jnp.where(down > k, column, jnp.zeros_like(column))
        norm = jnp.sum(tail * tail)
        beta = jnp.where(alpha < 0, 1, -1).astype(a.dtype) * jnp.sqrt(alpha * alpha + norm)
        still = norm == 0
        tau = jnp.where(still, jnp.zeros_like(beta), (beta - alpha) / beta)
        scaled = jnp.where(still, jnp.zeros_like(tail), tail / (alpha - beta))
        vector = jnp.where(down == k, jnp.ones_like(column), scaled)
        weights = jnp.where(across >= k, jnp.sum(vector[:, None] * a, axis=0), 0)
        a = a - tau * vector[:, None] * weights[None, :]
        a = jnp.where((across == k)[None, :] & (down > k)[:, None], scaled[:, None], a)
        return a, set_row(taus, k, tau)

    return lax.fori_loop(0, min(m, n), step, (a, jnp.zeros((min(m, n),), a.dtype)))


def reflect(a: jax.Array, taus: jax.Array, x: jax.Array, reverse: bool) -> jax.Array:
    """The product of the reflections held in ``a``, applied to ``x``: Q x, or its transpose with ``reverse``."""
    count, down = taus.shape[0], lax.iota(jnp.int32, a.shape[0])

    def step(at: jax.Array, x: jax.Array) -> jax.Array:
        k = at if reverse else count - 1 - at
        column = lax.dynamic_index_in_dim(a, k, 1, keepdims=False)
        vector = jnp.where(down > k, column, (down == k).astype(a.dtype))
        return x - row(taus, k) * vector[:, None] * jnp.sum(vector[:, None] * x, axis=0)[None, :]

    return lax.fori_loop(0, count, step, x)


def orthogonal(a: jax.Array, taus: jax.Array) -> jax.Array:
    m, n = a.shape
    return reflect(a, taus, jnp.eye(m, n, dtype=a.dtype), reverse=False)


def qr_matrix(a: jax.Array, full: bool) -> tuple[jax.Array, jax.Array]:
    m, n = a.shape
    packed, taus = geqrf_matrix(a)
    width = m if full else min(m, n)
    q = reflect(packed, taus, jnp.eye(m, width, dtype=a.dtype), reverse=False)
    return q, jnp.triu(packed[:width])


@matrix_rule("geqrf")
def geqrf(b: Builder, params: Params, a: Value) -> list[Value]:
    return retrace(b, over_matrices, a, fun=geqrf_matrix)


@matrix_rule("householder_product")
def householder_product(b: Builder, params: Params, a: Value, taus: Value) -> list[Value]:
    return retrace(b, over_matrices, a, taus, fun=orthogonal)


def apply_reflections(a: jax.Array, taus: jax.Array, c: jax.Array, left: bool, transpose: bool) -> jax.Array:
    if left:
        return reflect(a, taus, c, reverse=transpose)
    return reflect(a, taus, c.T, reverse=not transpose).T


@matrix_rule("ormqr")
def ormqr(b: Builder, params: Params, a: Value, taus: Value, c: Value) -> list[Value]:
    how = {"left": params["left"], "transpose": params["transpose"]}
    return retrace(b, over_matrices, a, taus, c, fun=apply_reflections, **how)


@matrix_rule("qr")
def qr(b: Builder, params: Params, a: Value) -> list[Value]:
    if params["pivoting"]:
        refuse(b, "qr", "column pivoting has no rule", XLA_FIX)
    return retrace(b, over_matrices, a, fun=qr_matrix, full=params["full_matrices"])


# --- tridiagonal -------------------------------------------------------------------------------------------


Lines = tuple[jax.Array, ...]


def thomas(dl: jax.Array, d: jax.Array, du: jax.Array, b: jax.Array) -> jax.Array:
    """x of a tridiagonal system, by elimination without pivoting; b is [n, k]."""

    def down(state: Lines, line: Lines) -> tuple[Lines, Lines]:
        upper, value = state
        low, mid, up, rhs = line
        pivot = mid - low * upper
        new = up / pivot, (rhs - low * value) / pivot
        return new, new

    def up(x: jax.Array, line: Lines) -> tuple[jax.Array, jax.Array]:
        upper, value = line
        x = value - upper * x
        return x, x

    zero: Lines = (jnp.zeros((), d.dtype), jnp.zeros_like(b[0]))
    swept = lax.scan(down, zero, (dl, d, du, b))[1]
    return lax.scan(up, zero[1], swept, reverse=True)[1]


def tridiagonal(dl: jax.Array, d: jax.Array, du: jax.Array, b: jax.Array) -> jax.Array:
    return batched(thomas, d.ndim - 1)(dl, d, du, b)


@matrix_rule("tridiagonal_solve")
def tridiagonal_solve(b: Builder, params: Params, *xs: Value) -> list[Value]:
    return retrace(b, tridiagonal, *xs)


# --- eigenvalues and singular values -------------------------------------------------------------------------


@matrix_rule("eigh")
def eigh(b: Builder, params: Params, a: Value) -> list[Value]:
    subset = params.get("subset_by_index")
    if subset is not None and tuple(subset) != (0, a.shape[-1]):
        refuse(b, "eigh", "a subset of the eigenvalues has no rule", "Ask for all and slice.")
    return retrace(b, over_matrices, a, fun=eigen.eigh_matrix, lower=params["lower"])


@matrix_rule("svd")
def svd(b: Builder, params: Params, a: Value) -> list[Value]:
    if params.get("subset_by_index") is not None:
        refuse(b, "svd", "a subset of the singular values has no rule", "Ask for all and slice.")
    outs = retrace(b, over_matrices, a, fun=singular, full=params["full_matrices"])
    return outs if params["compute_uv"] else outs[:1]


def singular(a: jax.Array, full: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(s, u, vt): rotated columns of the taller form are orthogonal, and their QR gives u even without full rank."""
    m, n = a.shape
    if m < n:
        s, u, vt = singular(a.T, full)
        return s, vt.T, u.T
    columns, v = eigen.rotate_columns(a)
    q, r = qr_matrix(columns, full)
    s = jnp.sqrt(jnp.sum(columns * columns, axis=0))
    signs = jnp.where(jnp.diagonal(r) < 0, -1, 1).astype(a.dtype)
    u = q * jnp.concatenate([signs, jnp.ones((q.shape[1] - n,), a.dtype)])[None, :]
    return s, u, v.T
