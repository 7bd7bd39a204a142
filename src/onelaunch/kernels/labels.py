"""Of labels alone: what a mean over those that count multiplies every loss by."""

import triton
import triton.language as tl


@triton.jit
def labels_mean_factor(target, factor, size, IGNORE: tl.constexpr, BLOCK: tl.constexpr):
    """factor: f32 or f64[1], 1 over the number of labels other than IGNORE, or 1 where there are none; one program."""
    at = tl.arange(0, BLOCK)
    counts = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, size, BLOCK):
        label = tl.load(target + start + at, start + at < size, other=IGNORE).to(tl.int64)
        counts += (label != IGNORE).to(tl.int32)
    number = tl.maximum(tl.sum(counts, 0), 1).to(factor.dtype.element_ty)
    one = tl.full((), 1.0, factor.dtype.element_ty)
    tl.store(factor, one / number if factor.dtype.element_ty == tl.float64 else tl.div_rn(one, number))
