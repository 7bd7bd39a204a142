"""Softmax, its logarithm and logsumexp along rows, forward and backward.

A program of ``softmax_held`` and ``softmax_held_backward`` takes ROWS rows, or a row is shared by PARTS programs
(``exchange``); each keeps its COLS columns in registers, so that everything is read once. In ``softmax_forward`` and
``softmax_backward``, for rows still longer, a program reads a row twice, first for its maximum and sum (rescaled block
by block, Milakov and Gimelshein 2018), then for its values.

Scores are ``cap(x * SCALE) + mask`` in f32 (f64 for f64) with ``cap(v) = CAP * tanh(v / CAP)``; entries outside
``keep`` or ahead of the diagonal have none. MODE 0 is softmax, 1 log-softmax, 2 logsumexp.

Each array has three strides over rows and one over columns, in elements, and offsets of 64 bits.
"""

import triton
import triton.language as tl

from onelaunch.kernels.exchange import collect, leave, opened, word
from onelaunch.kernels.rows import base, finite, place, saturate, share_of, start_of, widen, within


@triton.jit
def allowed(inside, keep, at, kc, query, start, OFFSET: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr):
    """Which entries take part: those inside the array, in ``keep``, and not ahead of the (shifted) diagonal."""
    if keep is not None:
        inside = inside & (tl.load(keep + at[:, None] + place(start, kc, COLS, WIDE)[None, :], inside, other=0) != 0)
    if OFFSET is not None:
        inside = inside & ((start + tl.arange(0, COLS))[None, :] <= (query + OFFSET)[:, None])
    return inside


@triton.jit
def block(x, at, xc, start, use, COLS: tl.constexpr, WIDE: tl.constexpr, OTHER: tl.constexpr = 0.0):
    """A block of an array as it is in memory, OTHER where not ``use``."""
    return tl.load(x + at[:, None] + place(start, xc, COLS, WIDE)[None, :], use, other=OTHER)


@triton.jit
def score(v, mask, ma, mc, start, use, SCALE: tl.constexpr, CAP: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr):
    """cap(v * SCALE) + mask where ``use``, else −inf (as v is there already, but a cap or a scale below 0 change it).

    Masking comes after the cap, so nothing left out gains mass.
    """
    z = v
    if SCALE != 1.0:
        z = z * SCALE
    if CAP is not None:
        z = saturate(z / CAP) * CAP
    if mask is not None:
        z += widen(block(mask, ma, mc, start, use, COLS, WIDE)).to(z.dtype)
    if CAP is not None or SCALE <= 0.0:
        z = tl.where(use, z, float("-inf"))
    return z


@triton.jit
def scores(
    x, mask, xa, ma, xc, mc, start, use,
    SCALE: tl.constexpr, CAP: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The scores of a block."""
    v = widen(block(x, xa, xc, start, use, COLS, WIDE, float("-inf")))
    return score(v, mask, ma, mc, start, use, SCALE, CAP, COLS, WIDE)


# --- rows held in registers ----------------------------------------------------------------------------------


@triton.jit
def gathered(words, row, part, first, second, PARTS: tl.constexpr, PLACES: tl.constexpr, PTX: tl.constexpr):
    """Two numbers of each piece of the one row of this program, as vectors over the pieces, and which places count."""
    one = tl.sum(row, 0)
    leave(words, one, part, word(tl.sum(first, 0), tl.sum(second, 0)), PARTS)
    firsts, seconds, use = collect(words, one, PARTS, PLACES, PTX)
    return firsts.to(tl.float32, bitcast=True), seconds.to(tl.float32, bitcast=True), use


@triton.jit
def softmax_held(
    x, mask, keep, y, words,
    rows, cols, n1, n2, queries,
    xs0, xs1, xs2, xc, ms0, ms1, ms2, mc, ks0, ks1, ks2, kc, ys0, ys1, ys2, yc,
    MODE: tl.constexpr, SCALE: tl.constexpr, CAP: tl.constexpr, OFFSET: tl.constexpr, PACKED: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, PARTS: tl.constexpr, PLACES: tl.constexpr, PTX: tl.constexpr,
    EVEN: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """y[row, column], or y[row] for logsumexp. x, mask, y: float; keep: int8; words: zeros, i64[rows, PARTS], or None.

    PACKED keeps x as it is in memory, not its exponentials (scores for the logarithm), which are made again then.
    """
    part = tl.program_id(0) % PARTS
    row = (tl.program_id(0) // PARTS).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    start = part * COLS
    live = row < rows
    query = row % queries
    xa = start_of(row, n1, n2, xs0, xs1, xs2)
    ma = start_of(row, n1, n2, ms0, ms1, ms2)
    ka = start_of(row, n1, n2, ks0, ks1, ks2)
    ya = start_of(row, n1, n2, ys0, ys1, ys2)
    inside = within(live, start, cols, COLS, EVEN)
    use = allowed(inside, keep, ka, kc, query, start, OFFSET, COLS, WIDE)
    held = block(x, xa, xc, start, use, COLS, WIDE, float("-inf"))
    z = score(opened(held, PTX and PACKED), mask, ma, mc, start, use, SCALE, CAP, COLS, WIDE)
    top = tl.max(z, 1)
    k, t = base(finite(top))
    if PACKED:
        z = score(opened(held, PTX), mask, ma, mc, start, use, SCALE, CAP, COLS, WIDE)
    e = tl.exp2(tl.fma(z, k[:, None], -t[:, None]))
    total = tl.sum(e, 1)
    own = top
    if PARTS > 1:
        tops, totals, there = gathered(words, row, part, top, total, PARTS, PLACES, PTX)
        tops = tl.where(there, tops, float("-inf"))
        top = tl.zeros_like(top) + tl.max(tops, 0)
        k, t = base(finite(top))
        total = tl.zeros_like(total) + tl.sum(tl.where(there, totals * share_of(tops, tl.max(tops, 0)), 0.0), 0)
    # A row whose maximum is infinite has no softmax: NaN, as in PyTorch and JAX.
    whole = tl.where(tl.abs(top) == float("inf"), float("nan"), total)
    # The sum is of powers relative to t; the logarithm's is relative to top.
    shift = tl.fma(finite(top), k, -t)
    if MODE == 2:
        lse = (tl.log2(total) - shift) * 0.6931471805599453 + finite(top)
        tl.store(y + ya, lse.to(y.dtype.element_ty), live & (part == 0))
    else:
        if PACKED:
            z = score(opened(held, PTX), mask, ma, mc, start, use, SCALE, CAP, COLS, WIDE)
        if MODE == 1:
            value = (z - finite(top)[:, None]) - ((tl.log2(whole) - shift) * 0.6931471805599453)[:, None]
        elif PACKED:
            value = tl.exp2(tl.fma(z, k[:, None], -t[:, None])) * (1.0 / whole)[:, None]
        else:
            value = e * (share_of(own, top) / whole)[:, None]
        deliver(y, value, keep, ya, yc, start, use, inside, MODE, OFFSET, COLS, WIDE)


@triton.jit
def deliver(
    y, value, keep, ya, yc, start, use, inside,
    MODE: tl.constexpr, OFFSET: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Store values of a block; 0 or −inf for what is left out."""
    if keep is not None or OFFSET is not None:
        value = tl.where(use, value, 0.0 if MODE == 0 else float("-inf"))
    at = y + ya[:, None] + place(start, yc, COLS, WIDE)[None, :]
    tl.store(at, value.to(y.dtype.element_ty), inside, cache_modifier=".cs")


@triton.jit
def softmax_held_backward(
    y, g, x, mask, keep, dx, words,
    rows, cols, n1, n2, queries,
    ys0, ys1, ys2, yc, gs0, gs1, gs2, gc, xs0, xs1, xs2, xc,
    ms0, ms1, ms2, mc, ks0, ks1, ks2, kc, ds0, ds1, ds2, dc,
    MODE: tl.constexpr, SCALE: tl.constexpr, CAP: tl.constexpr, OFFSET: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, PARTS: tl.constexpr, PLACES: tl.constexpr, PTX: tl.constexpr,
    EVEN: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dx[row, column] from softmax or its logarithm y and the upstream gradient g; x is read under a cap."""
    part = tl.program_id(0) % PARTS
    row = (tl.program_id(0) // PARTS).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    start = part * COLS
    live = row < rows
    query = row % queries
    ya = start_of(row, n1, n2, ys0, ys1, ys2)
    ga = start_of(row, n1, n2, gs0, gs1, gs2)
    xa = start_of(row, n1, n2, xs0, xs1, xs2)
    ka = start_of(row, n1, n2, ks0, ks1, ks2)
    da = start_of(row, n1, n2, ds0, ds1, ds2)
    inside = within(live, start, cols, COLS, EVEN)
    use = allowed(inside, keep, ka, kc, query, start, OFFSET, COLS, WIDE)
    out = block(y, ya, yc, start, use, COLS, WIDE)
    up = block(g, ga, gc, start, use, COLS, WIDE)
    total = tl.sum(share(opened(out, PTX), opened(up, PTX), MODE), 1)
    if PARTS > 1:
        _, totals, there = gathered(words, row, part, tl.full(total.shape, 1.0, tl.float32), total, PARTS, PLACES, PTX)
        total = tl.zeros_like(total) + tl.sum(tl.where(there, totals, 0.0), 0)
    value = slope(opened(out, PTX), opened(up, PTX), total, x, xa, xc, start, use, MODE, SCALE, CAP, COLS, WIDE)
    at = dx + da[:, None] + place(start, dc, COLS, WIDE)[None, :]
    tl.store(at, value.to(dx.dtype.element_ty), inside, cache_modifier=".cs")


# --- rows read twice -----------------------------------------------------------------------------------------


@triton.jit
def softmax_forward(
    x, mask, keep, y,
    rows, cols, n1, n2, queries,
    xs0, xs1, xs2, xc, ms0, ms1, ms2, mc, ks0, ks1, ks2, kc, ys0, ys1, ys2, yc,
    MODE: tl.constexpr, SCALE: tl.constexpr, CAP: tl.constexpr, OFFSET: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """y[row, column], or y[row] for logsumexp. x, mask, y: float; keep: int8."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = row < rows
    query = row % queries
    xa = start_of(row, n1, n2, xs0, xs1, xs2)
    ma = start_of(row, n1, n2, ms0, ms1, ms2)
    ka = start_of(row, n1, n2, ks0, ks1, ks2)
    ya = start_of(row, n1, n2, ys0, ys1, ys2)
    use = allowed(within(live, 0, cols, COLS, EVEN), keep, ka, kc, query, 0, OFFSET, COLS, WIDE)
    z = scores(x, mask, xa, ma, xc, mc, 0, use, SCALE, CAP, COLS, WIDE)
    top = tl.max(z, 1)
    total = tl.sum(tl.exp(z - finite(top)[:, None]), 1)
    for start in range(COLS, cols, COLS):
        use = allowed(within(live, start, cols, COLS, EVEN), keep, ka, kc, query, start, OFFSET, COLS, WIDE)
        z = scores(x, mask, xa, ma, xc, mc, start, use, SCALE, CAP, COLS, WIDE)
        higher = tl.maximum(top, tl.max(z, 1))
        shift = finite(higher)
        total = total * tl.exp(top - shift) + tl.sum(tl.exp(z - shift[:, None]), 1)
        top = higher
    shift = finite(top)
    if MODE == 2:
        tl.store(y + ya, (tl.log(total) + shift).to(y.dtype.element_ty), live)
    else:
        total = tl.where(tl.abs(top) == float("inf"), float("nan"), total)
        for start in range(0, cols, COLS):
            inside = within(live, start, cols, COLS, EVEN)
            use = allowed(inside, keep, ka, kc, query, start, OFFSET, COLS, WIDE)
            z = scores(x, mask, xa, ma, xc, mc, start, use, SCALE, CAP, COLS, WIDE)
            if MODE == 0:
                value = tl.exp(z - shift[:, None]) * (1.0 / total)[:, None]
            else:
                value = (z - shift[:, None]) - tl.log(total)[:, None]
            deliver(y, value, keep, ya, yc, start, use, inside, MODE, OFFSET, COLS, WIDE)


@triton.jit
def part(
    y, g, mask, x, ya, ga, xa, ma, yc, gc, xc, mc, start, use,
    MODE: tl.constexpr, SCALE: tl.constexpr, CAP: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The output (softmax for logsumexp) and the upstream gradient of a block, both 0 where not ``use``."""
    if MODE == 2:
        z = scores(x, mask, xa, ma, xc, mc, start, use, SCALE, CAP, COLS, WIDE)
        lse = widen(tl.load(y + ya))
        out = tl.exp(z - lse[:, None])
        up = tl.broadcast_to(widen(tl.load(g + ga))[:, None], out.shape)
    else:
        out = widen(tl.load(y + ya[:, None] + place(start, yc, COLS, WIDE)[None, :], use, other=0.0))
        up = widen(tl.load(g + ga[:, None] + place(start, gc, COLS, WIDE)[None, :], use, other=0.0))
    return out, up


@triton.jit
def softmax_backward(
    y, g, x, mask, keep, dx,
    rows, cols, n1, n2, queries,
    ys0, ys1, ys2, yc, gs0, gs1, gs2, gc, xs0, xs1, xs2, xc,
    ms0, ms1, ms2, mc, ks0, ks1, ks2, kc, ds0, ds1, ds2, dc,
    MODE: tl.constexpr, SCALE: tl.constexpr, CAP: tl.constexpr, OFFSET: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dx[row, column] from the output y and the upstream gradient g; x is read for logsumexp and under a cap."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = row < rows
    query = row % queries
    last = tl.minimum(row, rows - 1)  # a row to read where there is none left
    ya = start_of(last, n1, n2, ys0, ys1, ys2)
    ga = start_of(last, n1, n2, gs0, gs1, gs2)
    xa = start_of(row, n1, n2, xs0, xs1, xs2)
    ma = start_of(row, n1, n2, ms0, ms1, ms2)
    ka = start_of(row, n1, n2, ks0, ks1, ks2)
    da = start_of(row, n1, n2, ds0, ds1, ds2)
    inside = within(live, 0, cols, COLS, EVEN)
    use = allowed(inside, keep, ka, kc, query, 0, OFFSET, COLS, WIDE)
    out, up = part(y, g, mask, x, ya, ga, xa, ma, yc, gc, xc, mc, 0, use, MODE, SCALE, CAP, COLS, WIDE)
    total = tl.sum(share(out, up, MODE), 1)
    if MODE != 2:
        for start in range(COLS, cols, COLS):
            inside = within(live, start, cols, COLS, EVEN)
            use = allowed(inside, keep, ka, kc, query, start, OFFSET, COLS, WIDE)
            out, up = part(y, g, mask, x, ya, ga, xa, ma, yc, gc, xc, mc, start, use, MODE, SCALE, CAP, COLS, WIDE)
            total += tl.sum(share(out, up, MODE), 1)
    for start in range(0, cols, COLS):
        inside = within(live, start, cols, COLS, EVEN)
        use = allowed(inside, keep, ka, kc, query, start, OFFSET, COLS, WIDE)
        out, up = part(y, g, mask, x, ya, ga, xa, ma, yc, gc, xc, mc, start, use, MODE, SCALE, CAP, COLS, WIDE)
        value = slope(out, up, total, x, xa, xc, start, use, MODE, SCALE, CAP, COLS, WIDE)
        at = da[:, None] + place(start, dc, COLS, WIDE)[None, :]
        tl.store(dx + at, value.to(dx.dtype.element_ty), inside)


@triton.jit
def share(out, up, MODE: tl.constexpr):
    """What a row's gradient needs the sum of."""
    if MODE == 0:
        return out * up
    else:
        return up


@triton.jit
def slope(
    out, up, total, x, xa, xc, start, use,
    MODE: tl.constexpr, SCALE: tl.constexpr, CAP: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The gradient with respect to x of a block."""
    if MODE == 0:
        dz = out * (up - total[:, None])
    elif MODE == 1:
        dz = up - tl.exp(out) * total[:, None]
    else:
        dz = out * up
    dz = dz * SCALE
    if CAP is not None:
        v = widen(tl.load(x + xa[:, None] + place(start, xc, COLS, WIDE)[None, :], use, other=0.0)) * SCALE
        t = saturate(v / CAP)
        dz = dz * (1.0 - t * t)
    return tl.where(use, dz, 0.0)
