"""Calls of less common kinds, and what is refused by name because one kernel can't do it.

Primitives of other libraries (equinox, lineax...) need no rule: ``table.open_foreign`` opens them.
"""

from __future__ import annotations

import jax

from onelaunch.ir.builder import Builder
from onelaunch.ir.nodes import Value
from onelaunch.ops.control import inline_any
from onelaunch.ops.table import REFUSED, Params, inline_closed, inline_own, rule

COLLECTIVE = ("it talks to other devices, and a kernel runs on one", "Keep it outside the fused function.")
REFERENCE = ("it reads or writes a mutable reference", "Use functional updates: x.at[i].set(value).")

for _name in [
    "all_gather",
    "all_gather_invariant",
    "all_gather_reduced",
    "all_to_all",
    "axis_index",
    "pbroadcast",
    "pmax",
    "pmin",
    "ppermute",
    "precv",
    "psend",
    "psum",
    "psum_invariant",
    "ragged_all_to_all",
    "reduce_scatter",
    "shard_map",
    "unreduced_psum",
    "unreduced_reduce_scatter",
]:
    REFUSED[_name] = COLLECTIVE
for _name in [
    "accum_grad_in_ref",
    "addupdate",
    "empty_ref",
    "free_ref",
    "freeze",
    "get",
    "new_ref",
    "run_state",
    "swap",
]:
    REFUSED[_name] = REFERENCE
REFUSED |= {
    "fft": ("a Fourier transform has no rule", "It stays in XLA; a small one can be written as a matrix product."),
    "custom_lin": ("it exists only while JAX linearises a function", "Fuse the function whose derivative is taken."),
    "ffi_call": ("it calls a compiled library", "It stays in XLA with kernels around it; keep it out of hot loops."),
    "call_exported": ("it holds a compiled program", "Fuse the function before it is exported."),
    "custom_partitioning": ("it holds a partitioning rule for several devices", "Fuse the function inside it."),
}


@rule("custom_linear_solve")
def custom_linear_solve(b: Builder, params: Params, *args: Value) -> list[Value]:
    """The user's own solver, on its constants and the right-hand sides."""
    counts = params["const_lengths"]
    before = counts.matvec + counts.vecmat
    consts, rest = args[before : before + counts.solve], args[before + counts.solve + counts.transpose_solve :]
    return inline_closed(b, params["jaxprs"].solve, [*consts, *rest])


@rule("custom_vmap_call")
def custom_vmap_call(b: Builder, params: Params, *args: Value) -> list[Value]:
    return inline_any(b, params["call"], args)


@rule("call_hi_primitive")
def call_hi_primitive(b: Builder, params: Params, *args: Value) -> list[Value]:
    """A call of JAX 0.12 that brings its own expansion, on the tree of its operands."""
    prim = params["_prim"]

    def expand(*xs: jax.Array) -> list[jax.Array]:
        return jax.tree.leaves(prim.expand(*jax.tree.unflatten(prim.in_tree, xs)))

    avals = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in params["_in"]]
    return inline_own(b, jax.make_jaxpr(expand)(*avals), args)


@rule("linear_call")
def linear_call(b: Builder, params: Params, *args: Value) -> list[Value]:
    return inline_any(b, params["callee"], args)
