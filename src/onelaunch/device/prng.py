"""Counter-based random bits."""

import triton
import triton.language as tl


@triton.jit
def rotate_left(x, n: tl.constexpr):
    """The bits of a uint32 turned left by n."""
    return (x << n) | (x >> (32 - n))


@triton.jit
def threefry_rounds(a, b, r0: tl.constexpr, r1: tl.constexpr, r2: tl.constexpr, r3: tl.constexpr):
    """Four rounds of Threefry with the given rotations."""
    a = a + b
    b = rotate_left(b, r0) ^ a
    a = a + b
    b = rotate_left(b, r1) ^ a
    a = a + b
    b = rotate_left(b, r2) ^ a
    a = a + b
    b = rotate_left(b, r3) ^ a
    return a, b


@triton.jit
def threefry2x32(k0, k1, x0, x1):
    """Threefry-2x32, 20 rounds, of the key (k0, k1) and the counter (x0, x1), all uint32 (Salmon et al., SC11)."""
    k2 = k0 ^ k1 ^ 0x1BD11BDA
    a, b = threefry_rounds(x0 + k0, x1 + k1, 13, 15, 26, 6)
    a, b = threefry_rounds(a + k1, b + k2 + 1, 17, 29, 16, 24)
    a, b = threefry_rounds(a + k2, b + k0 + 2, 13, 15, 26, 6)
    a, b = threefry_rounds(a + k0, b + k1 + 3, 17, 29, 16, 24)
    a, b = threefry_rounds(a + k1, b + k2 + 4, 13, 15, 26, 6)
    return a + k2, b + k0 + 5
