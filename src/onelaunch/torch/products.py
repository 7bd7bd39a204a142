"""The matrix products of linear_cross_entropy: PyTorch's own, accumulated in place, in a wider dtype where asked."""

from __future__ import annotations

import torch
from torch import Tensor

#: Least and most tokens whose logits are held at once. Every chunk reads and writes the sum of the weight's gradients,
#: whose share of the time falls with the chunk's length, whatever the sizes; the logits' memory grows with it.
CHUNKS = 4096, 8192

#: Chunks are multiples of this many tokens: the tiles of the matrix products are full.
TILE = 128


def length(features: int, itemsize: int) -> int:
    """The rule: within CHUNKS, as many tokens as make logits of the size of the weight gradient's f32 sum."""
    return min(max(4 * features // itemsize // TILE * TILE, CHUNKS[0]), CHUNKS[1])


def chunks(tokens: int, limit: int) -> list[slice]:
    """Ranges of tokens of nearly equal length, at most ``limit`` each; none for no tokens."""
    number = -(-tokens // limit)
    if number <= 1:
        return [slice(0, tokens)] if tokens else []
    size = -(-tokens // number)
    if limit % TILE == 0:
        size = -(-size // TILE) * TILE
    return [slice(i, min(i + size, tokens)) for i in range(0, tokens, size)]


def product(a: Tensor, b: Tensor, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """``a @ b`` rounded once, to ``dtype``."""
    if a.dtype == dtype:
        return torch.mm(a, b) if out is None else torch.mm(a, b, out=out)
    if _mixed(a, dtype):
        if out is None:
            return torch.ops.aten.mm.dtype(a, b, dtype)
        return torch.ops.aten.mm.dtype_out(a, b, dtype, out=out)
    found = torch.mm(a.to(dtype), b.to(dtype)) if _widened(a, dtype) else torch.mm(a, b).to(dtype)
    return found if out is None else out.copy_(found)


def accumulate(total: Tensor, a: Tensor, b: Tensor) -> None:
    """``total += a @ b`` in place; without a temporary of total's size where the dtypes allow."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    elif _mixed(a, total.dtype):
        torch.ops.aten.addmm.dtype_out(total, a, b, total.dtype, out=total)
    elif _widened(a, total.dtype):
        total.addmm_(a.to(total.dtype), b.to(total.dtype))
    else:
        total.add_(torch.mm(a, b))


def _mixed(a: Tensor, dtype: torch.dtype) -> bool:
    """Whether PyTorch multiplies a's dtype into a wider result as it is (CUDA, from PyTorch 2.8 on)."""
    narrow = a.dtype in (torch.float16, torch.bfloat16) and dtype == torch.float32
    return narrow and a.is_cuda and hasattr(torch.ops.aten.mm, "dtype_out")


def _widened(a: Tensor, dtype: torch.dtype) -> bool:
    """Whether to convert before the product: exact, and on a CPU no slower."""
    return not a.is_cuda and dtype.itemsize > a.dtype.itemsize
