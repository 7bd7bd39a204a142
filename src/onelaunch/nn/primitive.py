"""One primitive for all row kernels: on a GPU a kernel, elsewhere XLA, or the kernel in the interpreter when asked."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from onelaunch import build, compat
from onelaunch.emit.kernel import Kernel, Param
from onelaunch.errors import BuildError
from onelaunch.kernels import text, tiles
from onelaunch.kernels.calls import Call
from onelaunch.kernels.tiles import Machine
from onelaunch.launch import jax as launch

rows_p = core.Primitive("onelaunch_rows")
rows_p.multiple_results = True


class Function(Protocol):
    """A row function with its options, hashable. ``names`` are those of the arrays that it is given, in order.

    Where it has ``inplace``, and that is true, the last result takes the memory of the first array if nothing else
    needs that.
    """

    def __hash__(self) -> int: ...

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def by_xla(self) -> Callable[..., list[Any]]:
        """The function of its arrays, by name, in JAX's own operations; it says the results' shapes and dtypes, too."""

    def kernel(self, shapes: Mapping[str, Any], results: Sequence[Any]) -> Kernel:
        """The kernel for arrays of these shapes and dtypes."""

    def batched(self, arrays: Mapping[str, jax.Array], dims: Mapping[str, int | None], size: int) -> list[jax.Array]:
        """The function of a batch, its dimension first in every result."""


def bind(function: Function, **arrays: Any) -> list[Any]:
    """The function's results for the arrays of its names (others are ignored where None)."""
    given = [arrays[name] for name in function.names]
    assert {name for name, value in arrays.items() if value is not None} == set(function.names)
    bound: Any = rows_p.bind
    given = alike(given)
    interpret = os.environ.get("ONELAUNCH_INTERPRET") == "1"
    return list(bound(*given, function=function, interpret=interpret))


def alike(arrays: Sequence[Any]) -> list[Any]:
    """The arrays, each said to differ along all mesh axes along which one of them does (under ``shard_map``)."""
    axes = [compat.varying(jax.typeof(a)) for a in arrays]
    every = frozenset().union(*axes)
    missing = [tuple(sorted(every - own, key=str)) for own in axes]
    return [jax.lax.pcast(a, more, to="varying") if more else a for a, more in zip(arrays, missing)]


def ruled(rule: Any, *options: Any) -> Callable[..., Any]:
    """A ``custom_vjp`` under its options, to be called on arrays; in one piece under ``shard_map``.

    shard_map outside of ``jax.jit`` runs op by op, and can't do so with rules that see symbolic zeros.
    """
    fun = functools.partial(rule, *options)
    return jax.jit(fun) if jax.sharding.get_abstract_mesh().manual_axes else fun


def assemble(call: Call, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Kernel:
    """The kernel of a call whose arrays have these shapes and dtypes (None: no array)."""
    arguments: dict[str, Any] = dict(call.numbers)
    for role, arrays in (("in", inputs), ("out", outputs)):
        for name, a in arrays.items():
            arguments[name] = None if a is None else Param(name, np.dtype(a.dtype), tuple(a.shape), role)
    options = (call.stages, call.registers, call.words)
    return text.entry(call.family, call.function, arguments, call.grid, call.warps, *options)


def front(array: jax.Array, dim: int | None, size: int, whole: bool = True) -> jax.Array:
    """The batch dimension first; ``whole`` repeats what has none, else its size there is 1."""
    if dim is not None:
        return jnp.moveaxis(array, dim, 0)
    return jnp.broadcast_to(array[None], (size if whole else 1, *array.shape))


def one_by_one(
    function: Function, arrays: Mapping[str, jax.Array], dims: Mapping[str, int | None], size: int
) -> list[jax.Array]:
    """A batch as a loop."""
    whole = {name: front(a, dims[name], size) for name, a in arrays.items()}
    found: list[jax.Array] = jax.lax.map(lambda example: bind(function, **example), whole)
    return found


def _results(function: Function, avals: Sequence[Any]) -> list[Any]:
    structs: list[Any] = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    return list(jax.eval_shape(lambda *xs: function.by_xla(**dict(zip(function.names, xs))), *structs))


@rows_p.def_abstract_eval
def _abstract_eval(*avals: Any, function: Function, interpret: bool) -> list[jax.core.ShapedArray]:
    return [compat.array_like(avals[0], r.shape, r.dtype) for r in _results(function, avals)]


@functools.lru_cache(maxsize=1024)
def _jitted(function: Function, interpret: bool) -> Any:
    return jax.jit(functools.partial(rows_p.bind, function=function, interpret=interpret))


@rows_p.def_impl
def _impl(*args: Any, function: Function, interpret: bool) -> list[jax.Array]:
    """Traced (``fuse`` opens a primitive by its impl) these are plain operations, to become part of a larger kernel."""
    if any(isinstance(a, jax.core.Tracer) for a in args):
        return _by_xla(*args, function=function)
    return list(_jitted(function, interpret)(*args))


#: What the kernel being lowered is for.
_machine: ContextVar[Machine | None] = ContextVar("_machine", default=None)


def machine() -> Machine:
    """What the kernel that is asked for runs on."""
    return _machine.get() or Machine()


def _gpu() -> Machine:
    """The machine of ``launch.device_target()``, with its number of processors where JAX knows it."""
    target = launch.device_target()
    if target.backend != "cuda":
        return Machine()
    try:
        device: Any = jax.local_devices(backend="gpu")[0]
    except RuntimeError:
        return Machine(int(target.arch))
    return Machine(int(target.arch), int(getattr(device, "core_count", None) or 2 * tiles.PARTS))


@contextmanager
def _on_gpu() -> Iterator[None]:
    token = _machine.set(_gpu())
    try:
        yield
    finally:
        _machine.reset(token)


def _kernel(function: Function, avals: Sequence[Any]) -> Kernel:
    return function.kernel(dict(zip(function.names, avals)), _results(function, avals))


def _by_kernel(*args: Any, function: Function) -> list[Any]:
    """Results of size 0 are none of the kernel's."""
    kernel = _kernel(function, args)
    # The words by which programs exchange maxima come after all results.
    last = sum(p.role == "out" for p in kernel.params) - 1 - bool(kernel.counter)
    found = iter(launch.call(kernel, *args, aliases={0: last} if getattr(function, "inplace", False) else None))
    return [next(found) if r.size else jnp.zeros(r.shape, r.dtype) for r in _results(function, args)]


def _by_xla(*args: Any, function: Function) -> list[Any]:
    return function.by_xla(**dict(zip(function.names, args)))


def _lower(ctx: Any, *args: Any, function: Function, interpret: bool) -> Any:
    rule = _by_kernel if interpret and not compat.spread_by_xla(ctx) else _by_xla
    return mlir.lower_fun(rule, multiple_results=True)(ctx, *args, function=function)


def _lower_gpu(ctx: Any, *args: Any, function: Function, interpret: bool) -> Any:
    """The kernel if Triton can build it; else XLA, with one warning that says how to report it.

    What XLA spreads over several devices it runs itself: it can't divide a kernel, and would gather the rows first.
    """
    if compat.spread_by_xla(ctx):
        return mlir.lower_fun(_by_xla, multiple_results=True)(ctx, *args, function=function)
    rule = _by_kernel
    with _on_gpu():
        try:
            build.compile(_kernel(function, ctx.avals_in), launch.device_target())
        except BuildError as error:
            warnings.warn(f"a row kernel runs in XLA: {error}. Please report this.", stacklevel=2)
            rule = _by_xla
        return mlir.lower_fun(rule, multiple_results=True)(ctx, *args, function=function)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, function: Function, interpret: bool) -> Any:
    """Derivatives beyond the first, which ``custom_vjp`` gives: by XLA."""
    full = [ad.instantiate_zeros(t) for t in tangents]
    return jax.jvp(functools.partial(_by_xla, function=function), tuple(primals), tuple(full))


def _batch(args: Sequence[Any], dims: Sequence[Any], *, function: Function, interpret: bool) -> Any:
    arrays = dict(zip(function.names, args))
    size = next(a.shape[d] for a, d in zip(args, dims) if d is not None)
    outs = function.batched(arrays, dict(zip(function.names, dims)), size)
    return outs, [0] * len(outs)


mlir.register_lowering(rows_p, _lower)
mlir.register_lowering(rows_p, _lower_gpu, platform="cuda")
ad.primitive_jvps[rows_p] = _jvp
batching.primitive_batchers[rows_p] = _batch
