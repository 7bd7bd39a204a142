"""Launch row kernels on tensors of any strides: by Triton on a GPU, in its interpreter on a CPU when asked."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from onelaunch.build import ALIGNMENT
from onelaunch.emit.kernel import Param
from onelaunch.ir.types import BFLOAT16
from onelaunch.kernels import text
from onelaunch.kernels.calls import Call
from onelaunch.kernels.layout import Rows, collapse
from onelaunch.kernels.tiles import Machine
from onelaunch.launch import interpreter

Tensors = Mapping[str, torch.Tensor | None]


def by_kernel(tensor: torch.Tensor) -> bool:
    """Whether our kernels run for this tensor's device: a GPU, or a CPU under ``ONELAUNCH_INTERPRET=1``."""
    return tensor.is_cuda or os.environ.get("ONELAUNCH_INTERPRET") == "1"


def on_gpu(tensor: torch.Tensor) -> bool:
    """Whether kernels on this tensor are compiled."""
    return tensor.is_cuda


def machine_of(tensor: torch.Tensor) -> Machine:
    """What kernels on this tensor run on."""
    return _machine(tensor.device) if tensor.is_cuda and torch.version.cuda else Machine()


@functools.cache
def _machine(device: torch.device) -> Machine:
    major, minor = torch.cuda.get_device_capability(device)
    return Machine(10 * major + minor, torch.cuda.get_device_properties(device).multi_processor_count)


def transformed() -> bool:
    """Whether torch.func asks for gradients, in ways that operators do not know; vmap alone they know."""
    if torch.compiler.is_compiling():
        return False
    functorch: Any = getattr(torch._C, "_functorch", None)
    stack = getattr(functorch, "get_interpreter_stack", lambda: None)()
    return any(level.key() != functorch.TransformType.Vmap for level in stack or ())


def forward_mode() -> bool:
    """Whether derivatives are carried forward (jvp, jacfwd, dual numbers): operators would drop them."""
    return not torch.compiler.is_compiling() and getattr(forward_ad, "_current_level", -1) >= 0


def unknown_derivative(*tensors: torch.Tensor | None) -> bool:
    """Whether these tensors' derivatives are asked for in a way that operators do not know."""
    return forward_mode() or (transformed() and any(t is not None and t.requires_grad for t in tensors))


def rows_of(
    axis: int, shape: Sequence[int], tensors: Sequence[torch.Tensor | None]
) -> tuple[Rows, list[torch.Tensor | None]]:
    """The rows of tensors that broadcast to ``shape``, and the tensors: copied where three dimensions don't do."""
    spread = [None if t is None else t.expand(tuple(shape)) for t in tensors]
    found = collapse(shape, axis, [_strides(t, shape) for t in spread])
    if found is None:
        spread = [None if t is None else t.contiguous() for t in spread]
        found = collapse(shape, axis, [_strides(t, shape) for t in spread])
    assert found is not None
    return found, spread


def _strides(tensor: torch.Tensor | None, shape: Sequence[int]) -> Sequence[int]:
    return [0] * len(shape) if tensor is None else tensor.stride()


class Prepared:
    """A launch that is repeated, on arrays of one signature, some of them the same at every launch (``fixed``).

    The first launch is Triton's own, and gives the compiled kernel; later ones only put addresses among its arguments.
    That kernel is for arrays that begin at multiples of 16 bytes; with others every launch is Triton's.
    """

    def __init__(self, call: Call, fixed: Tensors, outputs: Sequence[str]):
        self.call, self.fixed, self.outputs = call, fixed, outputs
        self.runner: Any = None
        self.arguments: list[Any] = []
        self.places: list[tuple[int, str]] = []

    def __call__(self, arrays: Tensors) -> None:
        """``arrays``: all but those fixed, by name, and perhaps others."""
        if self.runner is None:
            self._first(arrays)
            return
        arguments, bits = self.arguments.copy(), 0
        for place, name in self.places:
            array = arrays[name]
            assert array is not None
            arguments[place] = address = array.data_ptr()
            bits |= address
        if bits % ALIGNMENT:
            self._by_triton(arrays)
        elif torch.cuda.current_device() == self.device.index:
            self.runner(*arguments)
        else:
            with torch.cuda.device(self.device):
                self.runner(*arguments)

    def _by_triton(self, arrays: Tensors) -> Any:
        names = text.arguments(self.call.family, self.call.function)
        given = {name: arrays[name] for name in names if name in arrays and name not in self.fixed}
        inputs = {name: array for name, array in given.items() if name not in self.outputs}
        return launch(self.call, {**inputs, **self.fixed}, {name: given[name] for name in self.outputs})

    def _first(self, arrays: Tensors) -> None:
        kernel = self._by_triton(arrays)
        names = text.arguments(self.call.family, self.call.function)
        known = {**self.call.numbers, **self.fixed}
        whole = {name: known[name] if name in known else arrays[name] for name in names}
        there = [value for value in whole.values() if isinstance(value, torch.Tensor)]
        if kernel is None or torch.version.hip or any(array.data_ptr() % ALIGNMENT for array in there):
            return  # interpreted; or a kernel for arrays of some size; or for other addresses
        self.places = [(i, n) for i, n in enumerate(names) if n not in known and whole[n] is not None]
        self.arguments = [v.data_ptr() if isinstance(v, torch.Tensor) else v for v in whole.values()]
        self.device = there[0].device
        self.runner = kernel[(*self.call.grid, 1, 1)[:3]]


def signature(first: torch.Tensor, *others: torch.Tensor | None) -> tuple[Any, ...]:
    """What a prepared launch on tensors of one device depends on, but for their addresses."""
    rest = [None if t is None else (t.shape, t.stride(), t.dtype) for t in others]
    return first.shape, first.stride(), first.dtype, first.device, *rest


def launch(call: Call, inputs: Tensors, outputs: Tensors) -> Any:
    """Run the kernel: it writes ``outputs`` (one of them may share an input's memory). None stands for no array.

    Returns the compiled kernel, None from the interpreter.
    """
    some = next(t for t in {**inputs, **outputs}.values() if t is not None)
    if call.words is not None:
        words = torch.zeros(call.words, dtype=torch.int64, device=some.device) if call.words else None
        inputs = {**inputs, "words": words}
    given = {**inputs, **outputs}
    if not on_gpu(some):
        _interpret(call, inputs, outputs)
        return None
    pointers = {k: None if t is None else _bytes(t.detach()) for k, t in given.items()}
    arguments = {**pointers, **call.numbers}
    with torch.cuda.device(some.device):
        return text.run(call.family, call.function, call.grid, call.warps, arguments, call.stages, call.registers)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int8) if tensor.dtype == torch.bool else tensor


def _interpret(call: Call, inputs: Tensors, outputs: Tensors) -> None:
    flat = {k: None if t is None else _flat(t.detach()) for k, t in {**inputs, **outputs}.items()}
    arguments: dict[str, Any] = dict(call.numbers)
    for name, value in flat.items():
        role = "out" if name in outputs else "in"
        arguments[name] = None if value is None else Param(name, _array(value).dtype, (value.numel(),), role)
    kernel = text.entry(call.family, call.function, arguments, call.grid, call.warps, call.stages)
    arrays: list[np.ndarray] = []
    aliases: dict[int, int] = {}
    results = [p.name for p in kernel.params if p.role == "out"]
    for param in (p for p in kernel.params if p.role == "in"):
        value = flat[param.name]
        assert value is not None
        for number, result in enumerate(results):
            other = flat[result]
            if other is not None and other.data_ptr() == value.data_ptr() and value.numel():
                aliases[len(arrays)] = number
        arrays.append(_array(value))
    for name, array in zip(results, interpreter.run(kernel, arrays, aliases=aliases), strict=True):
        tensor = flat[name]
        assert tensor is not None
        _array(tensor)[...] = array


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """All memory that a tensor spans, from its first element on."""
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    return tensor.as_strided((extent,), (1,))


def _array(tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(BFLOAT16)
    return np.asarray(tensor.numpy())
