"""The message that jaxlib's launcher of Triton kernels reads: ``TritonAnyKernelCall`` of jaxlib/gpu/triton.proto.

jaxlib can write it too, but only where its GPU plugin is installed; written here, a program lowers for a GPU anywhere.
"""

from __future__ import annotations

import hashlib
import zlib

from onelaunch.build import ALIGNMENT, Built
from onelaunch.emit.kernel import Kernel


def kernel_call(kernel: Kernel, built: Built, *, with_cubin: bool) -> bytes:
    """The compressed message that launches ``kernel``, one array parameter for each of its params.

    ``with_cubin`` sends Triton's own machine code, which jaxlib takes from 0.11.1 on; else PTX, which it compiles.
    """
    code = built.asm["cubin"] if with_cubin else built.asm["ptx"]
    shared = int(built.metadata["shared"])
    if isinstance(code, bytes):
        # jaxlib keeps modules by name, shared bytes and PTX: without PTX a digest keeps kernels of one name apart.
        digest = hashlib.sha256(code).hexdigest()
        image = _bytes(1, code) + _text(2, kernel.name) + _number(3, shared)
        machine = _text(4, f"// {digest}") + _bytes(11, image)
    else:
        machine = _text(4, code)
    function = (
        _text(1, kernel.name)
        + _number(2, int(built.metadata["num_warps"]))
        + _number(3, shared)
        + machine
        + _number(6, int(built.target.arch))
        + _number(10, int(built.metadata["num_ctas"]))
    )
    grid = (*kernel.grid, 1, 1, 1)[:3]
    array = _bytes(5, _bytes(1, _number(2, ALIGNMENT)))
    call = _bytes(1, function) + b"".join(_number(2 + i, n) for i, n in enumerate(grid)) + array * len(kernel.params)
    return zlib.compress(_bytes(1, call) + _text(4, kernel.name))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value) if value else b""  # absent means 0


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())
