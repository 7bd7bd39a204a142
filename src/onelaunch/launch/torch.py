"""Launch generated kernels from PyTorch with Triton's own launcher; JAX is not imported."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from onelaunch.build import ALIGNMENT
from onelaunch.emit.kernel import Kernel, Param
from onelaunch.ir.types import BFLOAT16
from onelaunch.launch import interpreter
from onelaunch.load import load, mode


def call(kernel: Kernel, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """The outputs of ``kernel`` for tensors of one device (its "in" params in order, with their shapes and dtypes).

    Launches on the device's current stream and does not wait. CPU tensors run in Triton's interpreter. Raises TypeError
    on other shapes, dtypes or devices.
    """
    return launcher(kernel)(*tensors)


@functools.lru_cache(maxsize=1024)
def launcher(kernel: Kernel) -> Launcher:
    """A function of tensors that runs ``kernel``; keeps what need not be worked out again."""
    return Launcher(kernel)


class Launcher:
    """One kernel, ready to launch from tensors."""

    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self.inputs = [(p, _dtype(p)) for p in kernel.params if p.role == "in"]
        self.results = [(p, _dtype(p)) for p in kernel.params if p.role != "in"]
        self.function: Any = load(kernel.name, kernel.source, interpret=False).__dict__[kernel.name]
        self.options = {
            "num_warps": kernel.num_warps,
            "num_stages": kernel.num_stages,
            "enable_fp_fusion": kernel.fp_fusion,
            **({"maxnreg": kernel.registers} if kernel.registers else {}),
        }
        self.ready: set[torch.device] = set()

    def __call__(self, *tensors: torch.Tensor, device: torch.device | str | None = None) -> list[torch.Tensor]:
        """``device`` says where a kernel without inputs runs."""
        place = tensors[0].device if tensors else torch.device(device or "cuda")
        if place.type == "cpu":
            return self.interpret(tensors)
        counter = self.counter(place)
        self.check([*tensors, *counter])
        results = [torch.empty(p.shape, dtype=dtype, device=place) for p, dtype in self.results]
        if counter:
            results[sum(p.role == "out" for p, _ in self.results) - 1] = counter[0]
        given, made = iter([*tensors, *counter]), iter(results)
        pointers = [_pointer(next(given if p.role == "in" else made)) for p in self.kernel.params]
        with torch.cuda.device(place):
            self.launch(place, pointers)
        outs = [r for r, (p, _) in zip(results, self.results, strict=True) if p.role == "out"]
        return outs[:-1] if counter else outs

    def counter(self, place: torch.device) -> list[torch.Tensor]:
        """The zeros that a kernel with a counter starts from."""
        return [torch.zeros(self.inputs[-1][0].shape, dtype=torch.int32, device=place)] if self.kernel.counter else []

    def check(self, tensors: Sequence[torch.Tensor]) -> None:
        """Shapes, dtypes and the device agree, or TypeError."""
        name = self.kernel.name
        if len(tensors) != len(self.inputs):
            raise TypeError(f"kernel {name!r} takes {len(self.inputs)} tensors, not {len(tensors)}")
        for tensor, (param, dtype) in zip(tensors, self.inputs, strict=True):
            if tensor.dtype != dtype or tuple(tensor.shape) != param.shape:
                got = f"{tensor.dtype}{list(tensor.shape)}"
                raise TypeError(f"kernel {name!r}: {param.name} is {dtype}{list(param.shape)}, not {got}")
            if tensor.device != tensors[0].device:
                raise TypeError(f"kernel {name!r}: tensors on {tensors[0].device} and {tensor.device}")

    def launch(self, place: torch.device, pointers: Sequence[torch.Tensor]) -> None:
        """Launch on the current stream; the first launch on a device compiles."""
        if place in self.ready:
            self.function[self.kernel.grid](*pointers, **self.options)
            return
        if os.environ.get("TRITON_CACHE_DIR") == "":
            del os.environ["TRITON_CACHE_DIR"]  # importing jax_triton sets it to "", with which Triton can't launch
        with mode(interpret=False):
            self.function[self.kernel.grid](*pointers, **self.options)
        self.ready.add(place)

    def interpret(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The same in Triton's interpreter, on CPU tensors."""
        self.check([*tensors, *self.counter(torch.device("cpu"))])
        arrays = [_to_numpy(t, p) for t, (p, _) in zip(tensors, self.inputs)]
        outputs = [(p, dtype) for p, dtype in self.results if p.role == "out"]
        found = interpreter.run(self.kernel, arrays)
        return [_from_numpy(a, dtype) for a, (_, dtype) in zip(found, outputs, strict=True)]


def _dtype(param: Param) -> torch.dtype:
    dtype = getattr(torch, param.dtype.name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _pointer(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous, aligned as the kernel was told, and bool as bytes."""
    whole = tensor.detach().contiguous()
    if whole.data_ptr() % ALIGNMENT:
        whole = whole.clone()
    return whole.view(torch.int8) if whole.dtype == torch.bool else whole


def _to_numpy(tensor: torch.Tensor, param: Param) -> np.ndarray:
    whole = tensor.detach().contiguous()
    if param.dtype == BFLOAT16:
        return whole.view(torch.int16).numpy().view(BFLOAT16)
    return np.asarray(whole.numpy())


def _from_numpy(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
