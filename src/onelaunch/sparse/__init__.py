"""Block-sparse layouts, free of any framework: ``BlockLayout`` and rules that make one."""

from onelaunch.sparse.layout import BLOCKS, BlockLayout
from onelaunch.sparse.rules import (
    causal,
    dense,
    dilated,
    from_elements,
    from_function,
    from_mask_mod,
    global_tokens,
    random,
    sliding_window,
)

__all__ = [
    "BLOCKS",
    "BlockLayout",
    "causal",
    "dense",
    "dilated",
    "from_elements",
    "from_function",
    "from_mask_mod",
    "global_tokens",
    "random",
    "sliding_window",
]
