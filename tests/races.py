"""A kernel in the interpreter, watched for what one thread reads or writes of another's without a barrier between."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from onelaunch.launch import interpreter
from onelaunch.place.barrier import WARP

#: The lane of an access by many lanes.
MANY = -1


class Race(Exception):
    """Two accesses of one element by different threads, one of them a write, and no barrier between."""


class _Memory:
    """Of each byte of an array who wrote and who read it last (shape and lane of the access), and in which epoch."""

    def __init__(self, size: int):
        self.writer, self.reader = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self.written, self.read = np.full(size, -1, np.int64), np.full(size, -1, np.int64)


class _Watch(interpreter._Watch):
    """Also refuses races. A barrier begins a new epoch; so does a program, whose memory is its own.

    A tensor's lane is one thread if it has an element for each; smaller ones and scalars stand in several warps, are
    read by all and stored by one.
    """

    def __init__(self, kernel: Any, buffers: Any):
        super().__init__(kernel, buffers)
        self.threads = WARP * kernel.num_warps if kernel.num_warps > 1 else 1
        self.memory = [_Memory(b.param.nbytes) for b in self.buffers]
        self.shapes: dict[tuple[int, ...], int] = {}
        self.epoch = 0
        builder = interpreter.interpreter.interpreter_builder
        self.next_program = builder.set_grid_idx
        builder.create_barrier = self.barrier
        builder.set_grid_idx = self.program

    def barrier(self, *_: Any) -> None:
        self.epoch += 1

    def program(self, *index: int) -> None:
        self.epoch += 1
        self.next_program(*index)

    def checked(self, access: Any, mask: int | None = None, pointer: int = 0) -> Any:
        checked = super().checked(access, mask, pointer)
        name = access.__name__

        def call(*args: Any) -> Any:
            made = checked(*args)
            if "atomic" in name:
                self.barrier()
            else:
                self.meet(args[pointer].data, args[mask].data, args[pointer].get_element_ty(), "store" in name)
            return made

        return call

    def meet(self, addresses: np.ndarray, mask: np.ndarray, element: Any, stores: bool) -> None:
        scalar = addresses.size == 1
        alone = not scalar and math.prod(addresses.shape) >= self.threads
        number = self.shapes.setdefault(() if scalar else addresses.shape, len(self.shapes) + 1)
        lanes = (np.arange(addresses.size) + (number << 40)).reshape(addresses.shape)
        used = np.broadcast_to(mask, addresses.shape)
        at, who = addresses[used].astype(np.int64), lanes[used]
        for k, memory in enumerate(self.memory):
            here = (at >= self.starts[k]) & (at < self.stops[k])
            if here.any():
                self.touch(k, memory, at[here] - self.starts[k], who[here], alone, stores)

    def touch(self, k: int, memory: _Memory, at: np.ndarray, who: np.ndarray, alone: bool, stores: bool) -> None:
        stranger = (memory.writer[at] != who) | (not (alone or stores))
        bad = (memory.written[at] == self.epoch) & stranger
        if stores:
            bad |= (memory.read[at] == self.epoch) & ((memory.reader[at] != who) | (not alone))
        if bad.any():
            what = "store" if stores else "load"
            where = f"byte {at[bad][0]} of {self.buffers[k].param.name!r}"
            raise Race(f"kernel {self.kernel.name!r}: a {what} at {where} meets another thread's access")
        if stores:
            memory.writer[at], memory.written[at] = who, self.epoch
        else:
            before = memory.read[at] == self.epoch
            memory.reader[at] = np.where(before & (memory.reader[at] != who), MANY, who)
            _, where, count = np.unique(at, return_inverse=True, return_counts=True)
            memory.reader[at] = np.where(count[where] > 1, MANY, memory.reader[at])
            memory.read[at] = self.epoch


@contextmanager
def watched() -> Iterator[None]:
    """Kernels that run inside raise Race."""
    plain, builder = interpreter._Watch, interpreter.interpreter.interpreter_builder
    interpreter._Watch = _Watch
    try:
        yield
    finally:
        interpreter._Watch = plain
        for name in ("create_barrier", "set_grid_idx"):
            if name in vars(builder):
                delattr(builder, name)
