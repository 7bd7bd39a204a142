"""Block-sparse softmax in PyTorch's own operations, on dense matrices, with the kernels' definitions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from onelaunch.kernels.block_calls import BlockScores
from onelaunch.kernels.calls import LOGSUMEXP, SOFTMAX
from onelaunch.sparse.layout import BlockLayout
from onelaunch.torch.reference import wide

#: rpe, attn, pad, rel: fitted dense arrays or None.
Dense = Sequence[Tensor | None]


def shifted(rel: Tensor, keys: int) -> Tensor:
    """Relative logits (..., queries, extent) as (..., queries, keys): entry ``key - query + extent - 1``, 0 outside."""
    queries, extent = rel.shape[-2:]
    query = torch.arange(queries, device=rel.device)[:, None]
    at = torch.arange(keys, device=rel.device) - query + extent - 1
    there = (at >= 0) & (at < extent)
    if extent == 0:
        return rel.new_zeros(*rel.shape[:-1], keys)
    spread = rel.gather(-1, at.clamp(0, extent - 1).expand(*rel.shape[:-1], keys))
    return torch.where(there, spread, 0.0)


def scores(x: Tensor, dense: Dense, layout: BlockLayout, options: BlockScores) -> tuple[Tensor, Tensor]:
    """Dense scores in the wide dtype, and which take part."""
    rpe, attn, pad, rel = dense
    z = layout.to_dense(x.to(wide(x.dtype)) * options.scale)
    use = layout.to_dense(torch.ones_like(x, dtype=torch.bool), False)
    queries, keys = z.shape[-2:]
    if rpe is not None:
        z = z + rpe.to(z.dtype)
    if rel is not None:
        z = z + shifted(rel.expand(*rel.shape[:-2], queries, rel.shape[-1]), keys).to(z.dtype)
    for mask, multiply in ((attn, options.attn_mul), (pad, options.pad_mul)):
        if mask is not None and multiply:
            use = use & (mask != 0)
        elif mask is not None:
            z = z + mask.to(z.dtype)
    if options.causal:
        use = use & torch.ones(queries, keys, dtype=torch.bool, device=x.device).tril()
    return z, use & (z != float("-inf"))


def softmax(x: Tensor, dense: Dense, layout: BlockLayout, options: BlockScores) -> Tensor:
    """Values of softmax or its logarithm, or logsumexp of rows, in the wide dtype; differentiable by PyTorch."""
    z, use = scores(x, dense, layout, options)
    live = use.any(-1, keepdim=True)
    # A row of which nothing takes part is one of zeros for the time being: its derivatives would be NaN.
    z = torch.where(use, z, torch.where(live, float("-inf"), 0.0).to(z.dtype))
    if options.mode == LOGSUMEXP:
        return torch.where(live[..., 0], torch.logsumexp(z, -1), float("-inf"))
    if options.mode == SOFTMAX:
        return layout.from_dense(torch.where(use, torch.softmax(z, -1), 0.0))
    return layout.from_dense(torch.where(use, torch.log_softmax(z, -1), float("-inf")))


def backward(y: Tensor, g: Tensor, layout: BlockLayout, mode: int, factor: float) -> Tensor:
    """The gradient with respect to scores, times ``factor``, from the output of softmax or its logarithm."""
    kind = wide(y.dtype)
    left_out = 0.0 if mode == SOFTMAX else float("-inf")
    out = layout.to_dense(y.to(kind), left_out)
    up = torch.where(out == left_out, 0.0, layout.to_dense(g.to(kind)))
    if mode == SOFTMAX:
        dz = out * (up - (out * up).sum(-1, keepdim=True))
    else:
        dz = up - torch.exp(out) * up.sum(-1, keepdim=True)
    return layout.from_dense(dz * factor)


def logsumexp_backward(
    x: Tensor, dense: Dense, y: Tensor, g: Tensor, layout: BlockLayout, options: BlockScores, factor: float
) -> Tensor:
    """The gradient of logsumexp with respect to scores, times ``factor``."""
    z, use = scores(x, dense, layout, options)
    live = (y != float("-inf"))[..., None]
    p = torch.exp(z - torch.where(live, y[..., None].to(z.dtype), 0.0))
    return layout.from_dense(torch.where(use & live, p * g[..., None].to(z.dtype) * factor, 0.0))
