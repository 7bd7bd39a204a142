"""Softmax, its logarithm and logsumexp along rows, forward and backward.

A program takes ROWS rows. A row of at most COLS columns is read once; a longer one is read twice, first for its maximum
and sum (rescaled block by block, Milakov and Gimelshein 2018), then for its values. Scores are
``cap(x * SCALE) + mask`` in f32 (f64 for f64) with ``cap(v) = CAP * tanh(v / CAP)``; entries outside ``keep`` or ahead
of the diagonal have none. MODE 0 is softmax, 1 log-softmax, 2 logsumexp.

Each array has three strides over rows and one over columns, in elements, and offsets of 64 bits.
"""

import triton
import triton.language as tl

from onelaunch.kernels.rows import finite, place, saturate, start_of, widen, within


@triton.jit
def allowed(inside, keep, at, kc, query, start, OFFSET: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr):
    """Which entries take part: those inside the array, in ``keep``, and not ahead of the (shifted) diagonal."""
    if keep is not None:
        inside = inside & (tl.load(keep + at[:, None] + place(start, kc, COLS, WIDE)[None, :], inside, other=0) != 0)
    if OFFSET is not None:
        inside = inside & ((start + tl.arange(0, COLS))[None, :] <= (query + OFFSET)[:, None])
    return inside


@triton.jit
def scores(
    x, mask, xa, ma, xc, mc, start, use,
    SCALE: tl.constexpr, CAP: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """cap(x * SCALE) + mask where ``use``, else −inf: masking comes after the cap, so nothing left out gains mass."""
    z = widen(tl.load(x + xa[:, None] + place(start, xc, COLS, WIDE)[None, :], use, other=0.0)) * SCALE
    if CAP is not None:
        z = saturate(z / CAP) * CAP
    if mask is not None:
        z += widen(tl.load(mask + ma[:, None] + place(start, mc, COLS, WIDE)[None, :], use, other=0.0)).to(z.dtype)
    return tl.where(use, z, float("-inf"))


@triton.jit
def softmax_forward(
    x, mask, keep, y,
    rows, cols, n1, n2, queries,
    xs0, xs1, xs2, xc, ms0, ms1, ms2, mc, ks0, ks1, ks2, kc, ys0, ys1, ys2, yc,
    MODE: tl.constexpr, SCALE: tl.constexpr, CAP: tl.constexpr, OFFSET: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, SINGLE: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr,
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
    if not SINGLE:
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
        # A row whose maximum is infinite has no softmax: NaN, as in PyTorch and JAX.
        total = tl.where(tl.abs(top) == float("inf"), float("nan"), total)
        if MODE == 0:
            number = 1.0 / total
        else:
            number = tl.log(total)
        if SINGLE:
            inside = within(live, 0, cols, COLS, EVEN)
            give(y, z, shift, number, keep, ya, yc, 0, use, inside, MODE, OFFSET, COLS, WIDE)
        else:
            for start in range(0, cols, COLS):
                inside = within(live, start, cols, COLS, EVEN)
                use = allowed(inside, keep, ka, kc, query, start, OFFSET, COLS, WIDE)
                z = scores(x, mask, xa, ma, xc, mc, start, use, SCALE, CAP, COLS, WIDE)
                give(y, z, shift, number, keep, ya, yc, start, use, inside, MODE, OFFSET, COLS, WIDE)


@triton.jit
def give(
    y, z, shift, number, keep, ya, yc, start, use, inside,
    MODE: tl.constexpr, OFFSET: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Store softmax (``number`` is 1/sum) or its logarithm (``number`` is log(sum)); 0 or −inf for what is left out."""
    if MODE == 0:
        value = tl.exp(z - shift[:, None]) * number[:, None]
        if keep is not None or OFFSET is not None:
            value = tl.where(use, value, 0.0)
    else:
        value = (z - shift[:, None]) - number[:, None]
        if keep is not None or OFFSET is not None:
            value = tl.where(use, value, float("-inf"))
    tl.store(y + ya[:, None] + place(start, yc, COLS, WIDE)[None, :], value.to(y.dtype.element_ty), inside)


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
    ROWS: tl.constexpr, COLS: tl.constexpr, SINGLE: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr,
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
    if SINGLE:
        total = tl.sum(share(out, up, MODE), 1)
        value = slope(out, up, total, x, xa, xc, 0, use, MODE, SCALE, CAP, COLS, WIDE)
        tl.store(dx + da[:, None] + place(0, dc, COLS, WIDE)[None, :], value.to(dx.dtype.element_ty), inside)
    else:
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
