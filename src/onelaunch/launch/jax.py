"""Launch generated kernels from JAX: one primitive, lowered to one XLA custom call on a GPU and to a callback on a CPU.

Under ``jax.jit`` nothing of this module runs at a call: XLA launches the kernel on its own stream and device.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from onelaunch import build, compat, target
from onelaunch.emit.kernel import Kernel, Param
from onelaunch.launch import interpreter, wire

CALL_TARGET = "triton_kernel_call_ffi"

H200_BYTES = 141 * 10**9

kernel_p = Primitive("onelaunch_kernel")
kernel_p.multiple_results = True


def call(kernel: Kernel, *args: Any, aliases: Mapping[int, int] | None = None) -> list[Any]:
    """The outputs of ``kernel`` for JAX arrays or tracers (its "in" params in order, with their shapes and dtypes).

    ``aliases`` maps an argument's number to the output's that may take its buffer; XLA copies the argument first where
    something else still needs it. Raises TypeError on other shapes or dtypes, BuildError at lowering.
    """
    if kernel.counter:
        aliases = {**(aliases or {}), len(args): len(_role(kernel, "out")) - 1}
        args = (*args, jnp.zeros(_role(kernel, "in")[-1].shape, np.int32))
    outs = _bind(kernel, args, aliases)
    return outs[:-1] if kernel.counter else outs


def _bind(kernel: Kernel, args: Sequence[Any], aliases: Mapping[int, int] | None) -> list[Any]:
    found = [(a.dtype, a.shape) for a in args]
    wanted = [(p.dtype, p.shape) for p in kernel.params if p.role == "in"]
    if found != wanted:
        raise TypeError(f"kernel {kernel.name!r} takes {_show(wanted)}, not {_show(found)}")
    pairs = tuple(sorted(aliases.items())) if aliases else ()
    if not any(isinstance(a, jax.core.Tracer) for a in args):
        return list(_jitted(kernel, pairs)(*args))
    bind: Any = kernel_p.bind
    return list(bind(*args, kernel=kernel, aliases=pairs))


def device_target() -> target.Target:
    """The target of this process' GPU; ``ONELAUNCH_TARGET`` (e.g. "cuda:80"), or sm_90, where there is none."""
    if name := os.environ.get("ONELAUNCH_TARGET"):
        return target.parse(name)
    try:
        device = jax.local_devices(backend="gpu")[0]
    except RuntimeError:
        return build.DEFAULT_TARGET
    return target.from_capability(str(device.compute_capability))


def is_launch_failure(error: Exception) -> bool:
    """Whether a call failed because jaxlib's launcher could not load or start a kernel."""
    return re.search(r"triton_kernel|Shared memory requested|ptxas", str(error)) is not None


@functools.cache
def memory_bytes() -> int:
    """Bytes that JAX may have of this process' GPU; those of an H200 where there is none."""
    if has_gpu():
        stats = jax.local_devices(backend="gpu")[0].memory_stats() or {}
        return int(stats.get("bytes_limit", H200_BYTES))
    return H200_BYTES


@functools.cache
def has_gpu() -> bool:
    """Whether JAX sees a GPU in this process."""
    return any(device.platform in ("gpu", "cuda", "rocm") for device in jax.devices())


@kernel_p.def_abstract_eval
def _abstract_eval(*_: Any, kernel: Kernel, aliases: tuple[tuple[int, int], ...]) -> list[jax.core.ShapedArray]:
    return [jax.core.ShapedArray(p.shape, p.dtype) for p in _role(kernel, "out")]


@kernel_p.def_impl
def _impl(*args: Any, kernel: Kernel, aliases: tuple[tuple[int, int], ...]) -> list[jax.Array]:
    return list(_jitted(kernel, aliases)(*args))


@functools.lru_cache(maxsize=1024)
def _jitted(kernel: Kernel, aliases: tuple[tuple[int, int], ...]) -> Any:
    """The primitive under ``jax.jit``, whose own fast path is quicker than binding a primitive."""
    return jax.jit(functools.partial(kernel_p.bind, kernel=kernel, aliases=aliases))


def _lower_gpu(
    ctx: mlir.LoweringRuleContext, *operands: Any, kernel: Kernel, aliases: tuple[tuple[int, int], ...]
) -> Sequence[Any]:
    """One custom call whose operands are the inputs and whose results are the outputs, then the scratch arrays."""
    order = _role(kernel, "in") + _role(kernel, "out") + _role(kernel, "scratch")
    if list(kernel.params) != order:
        raise ValueError(f"kernel {kernel.name!r}: its params must be inputs, then outputs, then scratch")
    built = build.compile(kernel, device_target())
    opaque = wire.kernel_call(kernel, built, with_cubin=compat.LAUNCHER_TAKES_CUBIN)
    scratch = [jax.core.ShapedArray(p.shape, p.dtype) for p in _role(kernel, "scratch")] or _spare(kernel)
    rule = jax.ffi.ffi_lowering(CALL_TARGET, operand_output_aliases=dict(aliases))
    replace: Any = ctx.replace
    results = rule(replace(avals_out=[*ctx.avals_out, *scratch]), *operands, name=kernel.name, opaque=opaque)
    return list(results)[: len(ctx.avals_out)]


def _interpreted(*given: Any, kernel: Kernel, aliases: tuple[tuple[int, int], ...]) -> Any:
    """The kernel in Triton's interpreter, on the host."""
    struct: Any = jax.ShapeDtypeStruct
    args = list(given)
    results = [struct(p.shape, p.dtype) for p in _role(kernel, "out")]
    if not kernel.counter:
        run = functools.partial(_run_interpreter, kernel, dict(aliases))
        spare = [struct(a.shape, a.dtype) for a in _spare(kernel)]
        return jax.pure_callback(run, [*results, *spare], *args, vmap_method="sequential")[: len(results)]
    *args, counter = args  # the interpreter brings its own
    run = functools.partial(_run_interpreter, kernel, {i: o for i, o in aliases if i < len(args)})
    return [*jax.pure_callback(run, results[:-1], *args, vmap_method="sequential"), counter]


def _run_interpreter(kernel: Kernel, aliases: dict[int, int], *args: Any) -> list[np.ndarray]:
    outs = interpreter.run(kernel, [np.asarray(a) for a in args], aliases=aliases)
    return outs if kernel.counter else [*outs, *(np.zeros(a.shape, a.dtype) for a in _spare(kernel))]


def _spare(kernel: Kernel) -> list[jax.core.ShapedArray]:
    """A result that nobody reads, after those of a kernel with several.

    Without it a kernel that is all of a loop's body becomes the body's root, whose operands XLA then takes for what the
    loop hands on unchanged (its tests for loop invariants read the root as a tuple). Launchers pass over it.
    """
    return [jax.core.ShapedArray((1,), np.dtype("int8"))] if len(_role(kernel, "out")) > 1 else []


def _role(kernel: Kernel, role: str) -> list[Param]:
    return [p for p in kernel.params if p.role == role]


def _show(types: Sequence[tuple[np.dtype, tuple[int, ...]]]) -> str:
    return ", ".join(f"{dtype}[{','.join(map(str, shape))}]" for dtype, shape in types) or "nothing"


mlir.register_lowering(kernel_p, _lower_gpu, platform="cuda")
mlir.register_lowering(kernel_p, mlir.lower_fun(_interpreted, multiple_results=True), platform="cpu")
