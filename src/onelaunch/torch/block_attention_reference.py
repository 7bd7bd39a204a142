"""Block-sparse attention in PyTorch's own operations, on dense scores, with the kernels' definitions."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from onelaunch.kernels.attention_calls import Attention
from onelaunch.sparse.layout import BlockLayout
from onelaunch.torch.block_reference import shifted
from onelaunch.torch.reference import wide


def merged(rpe: Tensor, mask: Tensor | None, options: Attention) -> tuple[Tensor, Attention]:
    """What is added to scores and a mask as one mask that is added."""
    if mask is None:
        return rpe, dataclasses.replace(options, mask_add=True)
    if options.mask_add:
        return rpe + mask, options
    return torch.where(mask != 0, rpe, float("-inf")), dataclasses.replace(options, mask_add=True)


def attention(
    q: Tensor, k: Tensor, v: Tensor, pad: Tensor | None, mask: Tensor | None, layout: BlockLayout, options: Attention
) -> tuple[Tensor, Tensor]:
    """out in q's dtype and lse in the wide one; differentiable by PyTorch."""
    p, lse, _ = _weights(q, k, pad, mask, layout, options)
    return (p @ _spread(v, q)).to(q.dtype), lse


def _spread(t: Tensor, q: Tensor) -> Tensor:
    """Keys or values for every query head, in the wide dtype."""
    return t.to(wide(q.dtype)).repeat_interleave(q.shape[-3] // t.shape[-3], -3)


def _weights(
    q: Tensor, k: Tensor, pad: Tensor | None, mask: Tensor | None, layout: BlockLayout, options: Attention
) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities, logsumexp and the scores before masks."""
    kind = wide(q.dtype)
    z = (q.to(kind) @ _spread(k, q).mT) * options.scale
    if options.cap is not None:
        z = torch.tanh(z / options.cap) * options.cap
    before, (queries, keys) = z, z.shape[-2:]
    if mask is not None and options.extent is not None:
        mask = shifted(mask.expand(*mask.shape[:-2], queries, mask.shape[-1]), keys)
    blocks = torch.from_numpy(layout.mask.copy()).to(q.device)
    use = blocks.repeat_interleave(layout.block, -1).repeat_interleave(layout.block, -2)[..., :queries, :keys]
    use = use.repeat_interleave(q.shape[-3] // layout.heads, -3)
    if options.causal:
        use = use & torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril()
    spread = None if pad is None else pad[..., None, None, :]
    for array, add in ((spread, options.pad_add), (mask, options.mask_add)):
        if array is not None and add:
            z = z + array.to(kind)
        elif array is not None:
            use = use & (array != 0)
    use = use & (z != float("-inf"))
    live = use.any(-1, keepdim=True)
    # A query that sees nothing is one of zeros for the time being: its derivatives would be NaN.
    z = torch.where(use, z, torch.where(live, float("-inf"), 0.0).to(kind))
    p = torch.where(use, torch.softmax(z, -1), 0.0)
    return p, torch.where(live[..., 0], torch.logsumexp(z, -1), float("-inf")), before


def gradients(
    q: Tensor, k: Tensor, v: Tensor, pad: Tensor | None, mask: Tensor | None, dout: Tensor, dlse: Tensor | None,
    layout: BlockLayout, options: Attention,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Of q, k and v."""
    p, _, before = _weights(q, k, pad, mask, layout, options)
    up = dout.to(p.dtype)
    dp = up @ _spread(v, q).mT
    share = (p * dp).sum(-1, keepdim=True)
    ds = p * (dp - (share if dlse is None else share - dlse[..., None])) * options.scale
    if options.cap is not None:
        ds = ds * (1 - (before / options.cap) ** 2)
    dq = (ds @ _spread(k, q)).to(q.dtype)
    return dq, _gathered(ds.mT @ q.to(p.dtype), k), _gathered(p.mT @ up, v)


def _gathered(gradient: Tensor, like: Tensor) -> Tensor:
    """The sum over the query heads that share a key head."""
    heads = like.shape[-3]
    return gradient.unflatten(-3, (heads, gradient.shape[-3] // heads)).sum(-3).to(like.dtype)
