"""Run a generated kernel in Triton's interpreter on numpy arrays, every access checked; needs no GPU and no PyTorch."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from onelaunch.build import POINTERS
from onelaunch.emit.kernel import Kernel, Param
from onelaunch.errors import OnelaunchError
from onelaunch.ir.types import BFLOAT16
from onelaunch.load import load, mode

_GUARD = 4096
_ALIGNMENT = 256
_POISON = 0xAB


#: Methods of the interpreter's builder that are replaced while a kernel runs.
PATCHED = (
    "create_masked_load",
    "create_masked_store",
    "create_atomic_rmw",
    "create_atomic_cas",
    "create_splat",
    "create_dot",
    "create_fma",
    "cast_impl",
)


class MemoryFault(OnelaunchError):
    """A generated kernel touched memory outside its arrays, or wrote what it may only read: a bug of onelaunch."""


class _Buffer:
    """An array of a kernel between two guards, 256-byte aligned and poisoned."""

    def __init__(self, param: Param, value: np.ndarray | None):
        self.param = param
        self.memory = np.full(param.nbytes + 2 * _GUARD + _ALIGNMENT, _POISON, np.uint8)
        start = _GUARD + (-(self.memory.ctypes.data + _GUARD)) % _ALIGNMENT
        self.inside = slice(start, start + param.nbytes)
        self.address = self.memory.ctypes.data + start
        if value is not None:
            self.array[...] = value
        elif param.dtype.kind in "fV":
            self.array[...] = np.array(math.nan, param.dtype)
        self.before = self.memory.copy()

    @property
    def array(self) -> np.ndarray:
        return self.memory[self.inside].view(self.param.dtype).reshape(self.param.shape)

    def check(self, kernel: Kernel, written: bool) -> None:
        """Guards are whole; an input that nothing aliases is unchanged; a bool output holds 0 and 1 alone."""
        changed = np.flatnonzero(self.memory != self.before)
        start, stop = self.inside.start, self.inside.stop
        if not written and changed.size:
            raise MemoryFault(f"kernel {kernel.name!r} wrote to its input {self.param.name!r}")
        outside = changed[(changed < start) | (changed >= stop)]
        if outside.size:
            raise MemoryFault(f"kernel {kernel.name!r} wrote {outside[0] - start} bytes from {self.param.name!r}")
        if (
            written
            and self.param.role == "out"
            and self.param.dtype == bool
            and self.memory[self.inside].max(initial=0) > 1
        ):
            raise MemoryFault(f"kernel {kernel.name!r} left a bool of {self.param.name!r} unwritten or not 0 or 1")


def run(
    kernel: Kernel,
    args: Sequence[np.ndarray],
    *,
    aliases: Mapping[int, int] | None = None,
    order: str = "forward",
    seed: int = 0,
) -> list[np.ndarray]:
    """The outputs of ``kernel`` for ``args`` (its "in" params in order).

    ``aliases`` maps an input's number to the output's that shares its buffer. ``order`` of the programs is "forward",
    "reverse" or "shuffled" (by ``seed``). Outputs and scratch start poisoned. Raises MemoryFault on an access outside
    the arrays; an error of the interpreter itself passes through.
    """
    aliases = dict(aliases or {})
    if kernel.counter:
        aliases[len(args)] = sum(p.role == "out" for p in kernel.params) - 1
        args = [*args, np.zeros([p for p in kernel.params if p.role == "in"][-1].shape, np.int32)]
    buffers = _buffers(kernel, args, aliases)
    unique = list({id(b): b for b in buffers}.values())
    module = load(kernel.name, kernel.source, interpret=True)
    with mode(interpret=True), _patched(kernel, unique), np.errstate(all="ignore"):
        body = getattr(module, kernel.name).python
        grid = (*kernel.grid, 1, 1, 1)[:3]
        interpreter.interpreter_builder.set_grid_dim(*grid)
        pointers = [_pointer(b, p) for b, p in zip(buffers, kernel.params, strict=True)]
        for index in _programs(grid, order, seed):
            interpreter.interpreter_builder.set_grid_idx(*index)
            body(*pointers)
    inputs = [b for b in buffers if b.param.role == "in"]
    shared = {id(inputs[i]) for i in aliases}
    for buffer in unique:
        buffer.check(kernel, written=buffer.param.role != "in" or id(buffer) in shared)
    results = [
        b.memory[b.inside].view(p.dtype).reshape(p.shape).copy()
        for b, p in zip(buffers, kernel.params, strict=True)
        if p.role == "out"
    ]
    return results[:-1] if kernel.counter else results


def _buffers(kernel: Kernel, args: Sequence[np.ndarray], aliases: Mapping[int, int]) -> list[_Buffer]:
    values = iter(args)
    buffers = [_Buffer(p, _checked(kernel, p, next(values)) if p.role == "in" else None) for p in kernel.params]
    inputs = [b for b in buffers if b.param.role == "in"]
    outputs = [i for i, p in enumerate(kernel.params) if p.role == "out"]
    if len(args) != len(inputs):
        raise TypeError(f"kernel {kernel.name!r} takes {len(inputs)} arrays, not {len(args)}")
    for source, result in aliases.items():
        buffers[outputs[result]] = inputs[source]
    return buffers


def _checked(kernel: Kernel, param: Param, value: np.ndarray) -> np.ndarray:
    if value.shape != param.shape or value.dtype != param.dtype:
        got = f"{value.dtype}{list(value.shape)}"
        raise TypeError(f"kernel {kernel.name!r}: {param.name} is {param.dtype}{list(param.shape)}, not {got}")
    return value


def _pointer(buffer: _Buffer, param: Param) -> Any:
    kind = tl.pointer_type(tl.str_to_ty(POINTERS[param.dtype], None))
    handle = interpreter.TensorHandle(np.array([buffer.address], np.uint64), kind)
    return tl.tensor(handle, kind)


def _programs(grid: tuple[int, ...], order: str, seed: int) -> Iterator[tuple[int, ...]]:
    programs = itertools.product(*map(range, grid))
    if order == "forward":
        return programs
    everything = list(programs)
    if order == "reverse":
        return reversed(everything)
    if order != "shuffled":
        raise ValueError(f"order is 'forward', 'reverse' or 'shuffled', not {order!r}")
    random.Random(seed).shuffle(everything)
    return iter(everything)


@contextmanager
def _patched(kernel: Kernel, buffers: Sequence[_Buffer]) -> Iterator[None]:
    """``triton.language`` calls the interpreter, and loads and stores check their addresses first."""
    scope = interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    # Triton 3.6 makes a number of an array of one element, which numpy 2.5 refuses.
    scope.set_attr(tl.tensor, "__index__", lambda self: int(self.handle.data.reshape(())))
    builder, watch = interpreter.interpreter_builder, _Watch(kernel, buffers)
    builder.create_masked_load = watch.checked(builder.create_masked_load, mask=1)
    builder.create_masked_store = watch.checked(builder.create_masked_store, mask=2)
    builder.create_atomic_rmw = watch.checked(builder.create_atomic_rmw, mask=3, pointer=1)
    builder.create_atomic_cas = watch.checked(builder.create_atomic_cas)
    builder.create_splat = _splat
    builder.create_fma = _fused(builder.create_fma)
    builder.create_dot = _dot(builder.create_dot)
    builder.cast_impl = _rounded(builder.cast_impl)
    try:
        yield
    finally:
        for name in PATCHED:
            delattr(builder, name)
        scope.restore()


def _splat(kind: Any, value: Any) -> Any:
    """A scalar repeated; Triton's own makes an int32 (or float) array of a bool, which is no mask then."""
    data = np.broadcast_to(value.data.reshape(-1)[:1].reshape((1,) * len(kind.shape)), kind.shape)
    return interpreter.TensorHandle(np.array(data), value.dtype.scalar)


def _fused(product: Any) -> Any:
    """The interpreter's fused product of f32 rounded once; Triton 3.6's rounds twice."""

    def call(x: Any, y: Any, z: Any) -> Any:
        if z.data.dtype != np.float32:
            return product(x, y, z)
        exact = x.data.astype(np.float64) * y.data.astype(np.float64) + z.data.astype(np.float64)
        return interpreter.TensorHandle(exact.astype(np.float32), z.dtype.scalar)

    return call


def _rounded(cast: Any) -> Any:
    """The interpreter's casts with f32 to bfloat16 rounded to the nearest, as GPUs do; Triton's own cuts bits off."""

    def call(x: Any, kind: Any) -> Any:
        if x.dtype.scalar != tl.float32 or kind.scalar != tl.bfloat16:
            return cast(x, kind)
        return interpreter.TensorHandle(x.data.astype(BFLOAT16).view(np.uint16), kind.scalar)

    return call


def _dot(product: Any) -> Any:
    """The interpreter's product; it multiplies the bits of bfloat16 as if they were whole numbers."""

    def value(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return interpreter.TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    return lambda a, b, *rest: product(value(a), value(b), *rest)


class _Watch:
    """Knows the address ranges of a kernel's arrays and refuses any other."""

    def __init__(self, kernel: Kernel, buffers: Sequence[_Buffer]):
        self.kernel = kernel
        self.buffers = sorted(buffers, key=lambda b: b.address)
        starts = [b.address for b in self.buffers]
        stops = [b.address + b.param.nbytes for b in self.buffers]
        self.starts, self.stops = np.array(starts, np.int64), np.array(stops, np.int64)
        self.ranges = list(zip(starts, stops, strict=True))

    def checked(self, access: Any, mask: int | None = None, pointer: int = 0) -> Any:
        """``access`` of the interpreter's builder, its addresses checked first where the mask lets them through."""

        def call(*args: Any) -> Any:
            pointers = args[pointer]
            self.check(pointers.data, None if mask is None else args[mask].data, pointers.get_element_ty())
            return access(*args)

        return call

    def check(self, addresses: np.ndarray, mask: np.ndarray | None, element: Any) -> None:
        size = max(1, element.primitive_bitwidth // 8)
        if addresses.size == 1 and any(a <= addresses.item() <= b - size for a, b in self.ranges):
            return  # most accesses of a program without lanes
        used = addresses.reshape(-1) if mask is None else addresses[np.broadcast_to(mask, addresses.shape)]
        used = used.astype(np.int64)
        if not used.size:
            return
        where = np.searchsorted(self.starts, used, "right") - 1
        bad = (where < 0) | (used + size > self.stops[where])
        if bad.any():
            self.fault(int(used[bad.argmax()]))

    def fault(self, address: int) -> None:
        nearest = min(
            self.buffers, key=lambda b: min(abs(address - b.address), abs(address - b.address - b.param.nbytes))
        )
        param, offset = nearest.param, address - nearest.address
        raise MemoryFault(
            f"kernel {self.kernel.name!r} touched byte {offset} of {param.name!r}, "
            f"which has {param.nbytes} bytes ({param.dtype}{list(param.shape)})"
        )
