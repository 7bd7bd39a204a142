"""A row among several programs: each keeps a piece of it on the chip, and all learn the pieces' maxima and sums.

Every program of a row leaves one 64-bit word, two f32 (or an f32 and an i32), in an array of zeros and reads the row's
words until none is zero. A word is its own signal, so no fence and no counter is needed. It is never zero: where its
high half, a maximum, is zero, its low half, the sum of powers, is not.

The programs of a row have neighbouring numbers. A GPU starts programs in the order of their numbers, so of the rows not
finished the first one's programs are running or next to start: with fewer programs in a row than the GPU holds at once
(``tiles.PARTS``) somebody always proceeds. In the interpreter, where one program follows another, rows are not shared.
"""

import triton
import triton.language as tl


@triton.jit
def word(high, low):
    """Two 32-bit numbers as one of 64 bits."""
    return (high.to(tl.int32, bitcast=True).to(tl.int64) << 32) | low.to(tl.uint32, bitcast=True).to(tl.int64)


@triton.jit
def leave(words, row, part, value, PARTS: tl.constexpr):
    """Publish this part's word of a row."""
    at = words.to(tl.pointer_type(tl.int64)) + row * PARTS + part
    tl.atomic_xchg(at, value, sem="relaxed")


@triton.jit
def collect(words, row, PARTS: tl.constexpr, PLACES: tl.constexpr):
    """The words of a row, high and low halves (i32[PLACES], in the parts' order), and which places count."""
    place = tl.arange(0, PLACES)
    use = place < PARTS
    at = words.to(tl.pointer_type(tl.int64)) + row * PARTS + place
    found = tl.load(at, use, other=1, volatile=True)
    while tl.min((found != 0).to(tl.int32), 0) == 0:
        found = tl.load(at, use, other=1, volatile=True)
    return (found >> 32).to(tl.int32), found.to(tl.int32), use


@triton.jit
def opened(x, PTX: tl.constexpr):
    """Values in f32. From 16 bits they are converted anew at every call: kept until then they take half the registers.

    The compiler can't know that two calls give the same, so it does not keep the first one's result instead.
    """
    if PTX and x.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=r,=r,r", [x], dtype=tl.float32, is_pure=False, pack=2
        )
    elif PTX and x.dtype == tl.float16:
        return tl.inline_asm_elementwise(
            "{ .reg .b16 l, h; mov.b32 {l, h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }",
            "=r,=r,r", [x], dtype=tl.float32, is_pure=False, pack=2,
        )  # fmt: skip
    else:
        return x.to(tl.float32)
