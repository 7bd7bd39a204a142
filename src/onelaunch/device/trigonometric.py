"""Trigonometric functions and their inverses."""

import triton
import triton.language as tl

from onelaunch.device.floating import div


@triton.jit
def sin(x):
    """Sine; f32 denormals keep their value."""
    return tl.where(tl.abs(x) < 1.1754943508222875e-38, x, tl.sin(x))


@triton.jit
def cos(x):
    """Cosine."""
    return tl.cos(x)


@triton.jit
def tan(x):
    """Tangent, as a quotient."""
    return div(sin(x), cos(x))
