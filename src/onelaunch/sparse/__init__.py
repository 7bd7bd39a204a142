"""Block-sparse layouts, free of any framework: ``BlockLayout``, rules that make one, DeepSpeed's families."""

from onelaunch.sparse.families import big_bird, fixed, longformer, variable
from onelaunch.sparse.layout import BLOCKS, BlockLayout
from onelaunch.sparse.rules import (
    causal,
    dense,
    dilated,
    from_block_mask,
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
    "big_bird",
    "causal",
    "dense",
    "dilated",
    "fixed",
    "from_block_mask",
    "from_elements",
    "from_function",
    "from_mask_mod",
    "global_tokens",
    "longformer",
    "random",
    "sliding_window",
    "variable",
]
