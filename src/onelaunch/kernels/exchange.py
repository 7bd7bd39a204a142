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
def wait(at, lanes):
    """Each thread whose number is less than ``lanes`` waits until the word at its address is not zero.

    One warp asks, not all: the questions go to the cache that serves everybody's data.
    """
    return tl.inline_asm_elementwise(
        """{
        .reg .pred p;
        .reg .b32 t;
        .reg .b64 v;
        mov.u32 t, %tid.x;
        setp.ge.u32 p, t, $2;
        @p bra DONE;
        LOOP:
        ld.relaxed.gpu.global.b64 v, [$1];
        setp.eq.b64 p, v, 0;
        @p bra LOOP;
        DONE:
        mov.u32 $0, t;
        }""",
        "=r,l,r", [at, lanes], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def collect(words, row, PARTS: tl.constexpr, PLACES: tl.constexpr, PTX: tl.constexpr):
    """The words of a row, high and low halves (i32[PLACES], in the parts' order), and which places count.

    Waits for them; without PTX they must be there.
    """
    at = words.to(tl.pointer_type(tl.int64)) + row * PARTS
    if PTX:
        LANES: tl.constexpr = 32 if PLACES < 32 else PLACES
        lane = tl.arange(0, LANES)
        tl.debug_barrier()
        wait(at + tl.where(lane < PARTS, lane, 0), tl.full((LANES,), LANES, tl.int32))
        tl.debug_barrier()
    place = tl.arange(0, PLACES)
    use = place < PARTS
    found = tl.load(at + place, use, other=1, volatile=True)
    return (found >> 32).to(tl.int32), found.to(tl.int32), use


@triton.jit
def opened(x, PTX: tl.constexpr):
    """Values in f32 (f64 as they are). From 16 bits they are converted anew at every call.

    Kept as they are until then they take half the registers. The compiler can't know that two calls give the same, so
    it does not keep the first one's result instead.
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
    elif x.dtype == tl.float64:
        return x
    else:
        return x.to(tl.float32)
