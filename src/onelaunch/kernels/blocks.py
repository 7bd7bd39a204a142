"""What the kernels over block-sparse layouts share: walking a line's blocks, one or several a step."""

import triton
import triton.language as tl


@triton.jit
def entries(table, at, stop, BLOCK: tl.constexpr, DEPTH: tl.constexpr):
    """The table's entries for a step of DEPTH elements from entry ``at`` on: one, or one an element of small blocks.

    Beyond ``stop`` they are 0. A step reads its entries one step ahead, so that no load waits for another.
    """
    if BLOCK >= DEPTH:
        return tl.load(table + at, at < stop, other=0)
    else:
        lanes = at + tl.arange(0, DEPTH) // BLOCK
        return tl.load(table + lanes, lanes < stop, other=0)


@triton.jit
def steps(first, stop, BLOCK: tl.constexpr, DEPTH: tl.constexpr):
    """Steps of DEPTH elements over the blocks ``first`` to ``stop``."""
    if BLOCK >= DEPTH:
        return (stop - first) * (BLOCK // DEPTH)
    else:
        return tl.cdiv(stop - first, DEPTH // BLOCK)


@triton.jit
def entry_at(first, step, BLOCK: tl.constexpr, DEPTH: tl.constexpr):
    """The (first) entry that a step walks."""
    if BLOCK >= DEPTH:
        return first + step // (BLOCK // DEPTH)
    else:
        return first + step * (DEPTH // BLOCK)


@triton.jit
def inner(step, BLOCK: tl.constexpr, DEPTH: tl.constexpr):
    """Where a step begins inside its block."""
    if BLOCK > DEPTH:
        return step % (BLOCK // DEPTH) * DEPTH
    else:
        return 0


@triton.jit
def live(at, stop, BLOCK: tl.constexpr, DEPTH: tl.constexpr):
    """Which elements of a step belong to entries before ``stop``."""
    return at + tl.arange(0, DEPTH) // BLOCK < stop


@triton.jit
def positions(line, sub, BLOCK: tl.constexpr, DEPTH: tl.constexpr):
    """Where the elements of a step stand among all elements."""
    if BLOCK >= DEPTH:
        return line * BLOCK + sub + tl.arange(0, DEPTH)
    else:
        return line * BLOCK + tl.arange(0, DEPTH) % BLOCK


@triton.jit
def advance(line, sub, stride, BLOCK: tl.constexpr, DEPTH: tl.constexpr):
    """How far the rows of a step lie from where rows ``arange(DEPTH) % BLOCK`` lie: one number, or one a row."""
    if BLOCK >= DEPTH:
        return (line.to(tl.int64) * BLOCK + sub) * stride
    else:
        return (line.to(tl.int64) * BLOCK * stride)[:, None]
