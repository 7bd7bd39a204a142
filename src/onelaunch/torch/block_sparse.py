"""Block-sparse scores for PyTorch: what triton.ops.blocksparse had, and more (docs/block-sparse.md)."""

from onelaunch.sparse import BlockLayout
from onelaunch.torch.block_attention import attention
from onelaunch.torch.block_layouts import prepare
from onelaunch.torch.block_matmul import matmul
from onelaunch.torch.block_modules import SparseSelfAttention
from onelaunch.torch.block_softmax import log_softmax, logsumexp, softmax

__all__ = [
    "BlockLayout",
    "SparseSelfAttention",
    "attention",
    "log_softmax",
    "logsumexp",
    "matmul",
    "prepare",
    "softmax",
]
