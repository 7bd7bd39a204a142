"""Block-sparse scores for JAX: what triton.ops.blocksparse had, and more (docs/block-sparse.md)."""

from onelaunch.nn.block_attention import attention
from onelaunch.nn.block_matmul import matmul
from onelaunch.nn.block_softmax import log_softmax, logsumexp, softmax
from onelaunch.sparse import BlockLayout

__all__ = ["BlockLayout", "attention", "log_softmax", "logsumexp", "matmul", "softmax"]
