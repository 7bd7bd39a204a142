"""What emit hands on: one generated Triton module and what is needed to launch it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Param:
    """A pointer argument of the kernel: a contiguous row-major array of ``shape`` and ``dtype``.

    role: "in" (read only), "out" (written, uninitialised before), or "scratch" (uninitialised workspace, thrown away).
    bool arrays are int8 pointers in Triton (one byte an element, 0 or 1).
    """

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    role: str

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True)
class Kernel:
    """A generated module: ``source`` is Python text that imports only triton and defines ``name`` (``@triton.jit``).

    The kernel takes the pointers of ``params`` in that order and nothing else.
    """

    name: str
    source: str = field(repr=False)
    params: tuple[Param, ...]
    grid: tuple[int, ...]
    num_warps: int = 4
    num_stages: int = 1
    fp_fusion: bool = True
    #: at most so many a thread; None leaves it to the compiler
    registers: int | None = None
    #: the last "in" and the last "out" param are one int32 array, zero at the start, through which programs tell each
    #: other how far they are; launch functions supply it and hand out the other outputs only
    counter: bool = False
