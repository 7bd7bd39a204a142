"""Sparse self-attention as DeepSpeed's module, on any layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from onelaunch.sparse.layout import BlockLayout
from onelaunch.torch.block_attention import attention
from onelaunch.torch.block_matmul import matmul
from onelaunch.torch.block_softmax import softmax


class SparseSelfAttention(nn.Module):
    """Softmax of scaled scores over the blocks of a layout, times values: DeepSpeed's module of that name.

    layout: a BlockLayout (shorter sequences take its first rows and columns), a function of the sequence's length that
    gives one (``functools.partial(sparse.fixed, num_heads)``), or an object with ``block`` and ``make_layout(length)``,
    as DeepSpeed's configurations. fused: one kernel, which never writes the probabilities; otherwise product, softmax,
    product. scale: 1/sqrt(dim) if None.
    """

    def __init__(
        self, layout: Any, key_padding_mask_mode: str = "add", attn_mask_mode: str = "mul", *,
        scale: float | None = None, is_causal: bool = False, fused: bool = True,
    ):  # fmt: skip
        super().__init__()
        self.source: BlockLayout | Callable[[int], BlockLayout] = layout
        self.key_padding_mask_mode, self.attn_mask_mode = key_padding_mask_mode, attn_mask_mode
        self.scale, self.is_causal, self.fused = scale, is_causal, fused
        self._layouts: dict[int, BlockLayout] = {}

    def layout(self, length: int) -> BlockLayout:
        """The layout for sequences of ``length``, kept. Raises ValueError where there is none."""
        if length not in self._layouts:
            self._layouts[length] = self._made(length)
        return self._layouts[length]

    def _made(self, length: int) -> BlockLayout:
        source: Any = self.source
        if isinstance(source, BlockLayout):
            if length % source.block:
                raise ValueError(f"a sequence of {length} is no multiple of the block, {source.block}")
            blocks = length // source.block
            return source if (blocks, blocks) == (source.rows, source.columns) else source.crop(blocks)
        if hasattr(source, "make_layout"):
            return BlockLayout(source.make_layout(length), source.block)
        made = source(length)
        if not isinstance(made, BlockLayout):
            raise TypeError(f"the layout of a sequence is a BlockLayout, not {type(made).__name__}")
        return made

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, rpe: Tensor | None = None,
        key_padding_mask: Tensor | None = None, attn_mask: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """(batch, heads, length, dim) of each; key may be (batch, heads, dim, length), as DeepSpeed allows.

        rpe: (batch, heads, length, length), or what broadcasts to it. key_padding_mask: (batch, length), perhaps with
        axes of size 1 between. attn_mask: (length, length), perhaps with such axes before.
        """
        if key.shape != query.shape and key.mT.shape == query.shape:
            key = key.mT
        if key.shape != query.shape or value.shape != query.shape:
            shapes = ", ".join(str(list(t.shape)) for t in (query, key, value))
            raise ValueError(f"query, key and value of self-attention have one shape, not {shapes}")
        layout = self.layout(query.shape[-2]).expand(query.shape[-3])
        if key_padding_mask is not None:
            key_padding_mask = key_padding_mask.reshape(key_padding_mask.shape[0], key_padding_mask.shape[-1])
        scale = query.shape[-1] ** -0.5 if self.scale is None else self.scale
        options: dict[str, Any] = {
            "rpe": rpe,
            "key_padding_mask": key_padding_mask,
            "attn_mask": attn_mask,
            "key_padding_mask_mode": self.key_padding_mask_mode,
            "attn_mask_mode": self.attn_mask_mode,
            "is_causal": self.is_causal,
        }
        if self.fused:
            out: Tensor = attention(query, key, value, layout, scale=scale, **options)
            return out
        scores = matmul(query, key, layout, "sdd", trans_b=True)
        return matmul(softmax(scores, layout, scale, **options), value, layout, "dsd")

    def extra_repr(self) -> str:
        return f"{self.source}, fused={self.fused}"
