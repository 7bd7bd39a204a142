"""Access to single lanes of a tensor."""

import triton
import triton.language as tl


@triton.jit
def pick(x, lane, i, axis: tl.constexpr):
    """The element of ``x`` where ``lane == i`` along ``axis``, exact to the bit (a sum over its bits and zeros)."""
    if x.dtype == tl.float64:
        return tl.sum(tl.where(lane == i, x.to(tl.int64, bitcast=True), 0), axis).to(tl.float64, bitcast=True)
    elif x.dtype == tl.float32:
        return tl.sum(tl.where(lane == i, x.to(tl.int32, bitcast=True), 0), axis).to(tl.float32, bitcast=True)
    elif x.dtype == tl.float16:
        bits = tl.where(lane == i, x.to(tl.int16, bitcast=True).to(tl.int32), 0)
        return tl.sum(bits, axis).to(tl.int16).to(tl.float16, bitcast=True)
    elif x.dtype == tl.bfloat16:
        bits = tl.where(lane == i, x.to(tl.int16, bitcast=True).to(tl.int32), 0)
        return tl.sum(bits, axis).to(tl.int16).to(tl.bfloat16, bitcast=True)
    elif x.dtype == tl.int1:
        return tl.max(tl.where(lane == i, x.to(tl.int32), 0), axis) != 0
    else:
        return tl.sum(tl.where(lane == i, x, 0).to(x.dtype), axis).to(x.dtype)
