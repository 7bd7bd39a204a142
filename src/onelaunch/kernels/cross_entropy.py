"""Cross-entropy of logits along rows: losses, log-sum-exp, argmax and, in the same launch, the gradient.

Scores are ``cap(x * SCALE)`` with ``cap(v) = CAP * tanh(v / CAP)``. For a label t with class weights w, smoothing ε and
C classes a row's loss is ``(1-ε) w[t] (lse - z[t]) + ε/C Σ w (lse - z)``, as PyTorch defines it; for probabilities q it
is ``Σ q' w (lse - z)`` with ``q' = (1-ε) q + ε/C``. With ``mass`` the weight of lse in it, the gradient with respect to
z is ``mass softmax(z) - (weights of z)``. A row whose label is IGNORE has loss and gradient 0 and its logits are not
read (unless ``lse`` is wanted); one whose label is outside [0, C) has loss and gradient NaN, and nothing is read
outside. A row's entropy is ``lse - Σ p z`` with ``p = softmax(z)``; its gradient ``-p (z - lse + entropy)``.

Where the columns are a part of PART classes (a slice of a vocabulary, or one with padding) a label elsewhere has no
weight here, and only the first ``width`` columns are classes; the gradient of the others is 0.

A program takes ROWS rows. A row of at most COLS columns is read once; of a longer one the second read, for the
gradient, comes soon after the first, from the cache.
"""

import triton
import triton.language as tl

from onelaunch.kernels.rows import finite, place, saturate, start_of, widen, within


@triton.jit
def logit(x, at, use, SCALE: tl.constexpr, CAP: tl.constexpr, EVICT: tl.constexpr):
    """Scores at some offsets, −inf where not ``use``."""
    z = widen(tl.load(x + at, use, other=0.0, eviction_policy=EVICT)) * SCALE
    if CAP is not None:
        z = saturate(z / CAP) * CAP
    return tl.where(use, z, float("-inf"))


@triton.jit
def pull(
    target, weight, each, ta, tc, start, use, cols,
    SMOOTH: tl.constexpr, SOFT: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    """Weights of the scores of a block in their rows' losses, but for a label's own: q' w, or ε/C w; each is ε/C."""
    kind: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    if SOFT:
        q = tl.load(target + ta[:, None] + place(start, tc, COLS, WIDE)[None, :], use, other=0.0).to(kind)
        if SMOOTH != 0.0:
            q = q * (1.0 - SMOOTH) + each
    else:
        q = tl.zeros(use.shape, kind) + each
    if weight is not None:
        column = start + tl.arange(0, COLS)
        q = q * tl.load(weight + column, column < cols, other=0.0).to(kind)[None, :]
    return tl.where(use, q, 0.0)


@triton.jit
def weigh(q, z):
    """Row sums of q z, without the entries of weight 0 (whose score may be −inf)."""
    return tl.sum(tl.where(q == 0.0, 0.0, q * z), 1)


@triton.jit
def own(
    target, weight, row, live, cols,
    IGNORE: tl.constexpr, SMOOTH: tl.constexpr, DOUBLE: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Each row's label (in [0, C), any where there is none), whether it counts, and (1-ε) w[t].

    A label outside [0, C) has weight NaN, or 0 where it may be that of another part; then no column is its own.
    """
    kind: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    label = tl.load(target + row, live, other=IGNORE).to(tl.int64)
    valid = live & (label != IGNORE)
    inside = valid & (label >= 0) & (label < cols)
    label = tl.where(inside, label, 0)
    elsewhere: tl.constexpr = 0.0 if PART else float("nan")
    share = tl.full(row.shape, 1.0, kind) * (1.0 - SMOOTH)
    if weight is not None:
        share = share * tl.load(weight + label, inside, other=0.0).to(kind)
    share = tl.where(inside, share, tl.where(valid, elsewhere, 0.0))
    return label.to(tl.int32), valid, share


@triton.jit
def unit(cols, SMOOTH: tl.constexpr, PART: tl.constexpr, DOUBLE: tl.constexpr):
    """ε/C."""
    kind: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    if PART:
        return tl.full((), SMOOTH, kind) / PART
    else:
        return tl.full((), SMOOTH, kind) / cols


@triton.jit
def lead(z, start, COLS: tl.constexpr):
    """Each row's largest score in a block and the first column that has it; NaN counts as the largest."""
    key = tl.where(z != z, float("inf"), z)
    high = tl.max(key, 1)
    column = (start + tl.arange(0, COLS))[None, :]
    return high, tl.min(tl.where(key == high[:, None], column, 2147483647), 1)


@triton.jit
def settle(
    top, rest, picked, share, valid, drawn, weights, weight, total_weight, each, factor, zfactor, row, live, classes,
    fs,
    SMOOTH: tl.constexpr, ZSCALE: tl.constexpr, SOFT: tl.constexpr, DOUBLE: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Of each row, loss, lse, mass, and the gradient's factors of softmax and of the weights of z.

    ``rest`` is the logarithm of Σ exp(z - top), ``picked`` the label's score.
    """
    kind: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    found = rest + finite(top)
    if SOFT:
        value = tl.where(weights == 0.0, 0.0, weights * found) - drawn
        bulk = weights
    else:
        # Subtracted before the logarithm is added: exact for large logits. Infinite ones have no softmax: NaN.
        gap = tl.where(tl.abs(top) == float("inf"), float("nan"), rest + (finite(top) - picked))
        value = tl.where(share == 0.0, 0.0, share * gap)
        bulk = share
        if SMOOTH != 0.0:
            spread = tl.full((), SMOOTH, kind)
            if weight is not None:
                spread = each * tl.load(total_weight).to(kind)
            elif PART:
                spread = each * classes
            value += spread * found - drawn
            bulk += spread
    value = tl.where(valid, value, 0.0)
    bulk = tl.where(valid, bulk, 0.0)
    scale = tl.full(row.shape, 1.0, kind)
    if factor is not None:
        scale = tl.load(factor + row * fs, live, other=0.0).to(kind)
        value = value * scale
    push = bulk * scale
    if ZSCALE != 0.0:
        extra = tl.load(zfactor + row * fs, live, other=0.0).to(kind) * ZSCALE
        extra = tl.where(valid, extra, 0.0)
        value += tl.where(valid, extra * found * found, 0.0)
        push += tl.where(valid, 2.0 * extra * found, 0.0)
    return value, found, bulk, push, scale


@triton.jit
def gradient(
    z, target, weight, each, ta, tc, grad, ga, gc, label, share, mass, scale, top, over, bend, entropy,
    start, use, inside, cols,
    SMOOTH: tl.constexpr, SCALE: tl.constexpr, CAP: tl.constexpr, SOFT: tl.constexpr,
    COLS: tl.constexpr, WIDE: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    """Store ``mass softmax(z) - scale (weights of z)`` times dz/dx; softmax is ``exp(z - top) * over``.

    ``bend`` is the entropy's upstream gradient (``top`` is lse then), or None.
    """
    d = tl.exp(z - top[:, None]) * (over * mass)[:, None]
    if bend is not None:
        p = tl.exp(z - top[:, None]) * over[:, None]
        d -= tl.where(p == 0.0, 0.0, p * (z - top[:, None] + entropy[:, None])) * bend[:, None]
    if SOFT or SMOOTH != 0.0:
        d -= pull(target, weight, each, ta, tc, start, use, cols, SMOOTH, SOFT, COLS, WIDE, DOUBLE) * scale[:, None]
    if not SOFT:
        hit = (start + tl.arange(0, COLS))[None, :] == label[:, None]
        d = tl.where(hit, d - (share * scale)[:, None], d)
    d = d * SCALE
    if CAP is not None:
        t = z / CAP
        d = d * (1.0 - t * t)
    d = tl.where(use, d, 0.0)
    tl.store(
        grad + ga[:, None] + place(start, gc, COLS, WIDE)[None, :],
        d.to(grad.dtype.element_ty),
        inside,
        cache_modifier=".cs",
    )


@triton.jit
def step(
    x, xa, xc, target, weight, each, ta, tc, start, read, cols,
    top, total, drawn, weights, high, arg, tilt, best, entropy,
    SMOOTH: tl.constexpr, SCALE: tl.constexpr, CAP: tl.constexpr, SOFT: tl.constexpr, COLS: tl.constexpr,
    EVEN: tl.constexpr, WIDE: tl.constexpr, DOUBLE: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """A block more in: the maximum and sum of exponentials, Σ q w z, Σ q w, the largest score and where it is.

    tilt, for the entropy, is Σ exp(z - top) (z - top).
    """
    use = within(read, start, cols, COLS, EVEN)
    z = logit(x, xa[:, None] + place(start, xc, COLS, WIDE)[None, :], use, SCALE, CAP, EVICT)
    higher = tl.maximum(top, tl.max(z, 1))
    shift = finite(higher)
    if entropy is not None:
        e = tl.exp(z - shift[:, None])
        moved = tl.where(total == 0.0, 0.0, tilt + (top - shift) * total) * tl.exp(top - shift)
        tilt = moved + tl.sum(tl.where(e == 0.0, 0.0, e * (z - shift[:, None])), 1)
    total = total * tl.exp(top - shift) + tl.sum(tl.exp(z - shift[:, None]), 1)
    if best is not None:
        new, where = lead(z, start, COLS)
        arg = tl.where(new > high, where, arg)
        high = tl.maximum(new, high)
    if SOFT or SMOOTH != 0.0:
        q = pull(target, weight, each, ta, tc, start, use, cols, SMOOTH, SOFT, COLS, WIDE, DOUBLE)
        drawn += weigh(q, z)
        weights += tl.sum(q, 1)
    return z, higher, total, drawn, weights, high, arg, tilt


@triton.jit
def cross_entropy_forward(
    x, target, weight, total_weight, factor, zfactor, width, loss, lse, mass, best, peak, entropy, grad,
    rows, cols, n1, n2, xs0, xs1, xs2, xc, ts0, ts1, ts2, tc, gs0, gs1, gs2, gc, fs,
    IGNORE: tl.constexpr, SMOOTH: tl.constexpr, ZSCALE: tl.constexpr, SCALE: tl.constexpr, CAP: tl.constexpr,
    SOFT: tl.constexpr, ALL: tl.constexpr, DOUBLE: tl.constexpr, PART: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, SINGLE: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """loss, lse, mass, peak, entropy: f32[rows] (f64 if DOUBLE); best: i32 or i64[rows]; grad: as x.

    All but the first three may be None; peak is the score of best.

    ``factor`` (and ``zfactor``, for the term ``ZSCALE lse²``) multiplies loss and gradient: one number (fs 0) or one a
    row (fs 1), or None. ``total_weight`` is the sum of ``weight``. ALL reads ignored rows too, for their lse.
    ``width``: i32[1], how many columns are classes, or None: all are (EVEN is False then).
    """
    kind: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = row < rows
    xa = start_of(row, n1, n2, xs0, xs1, xs2)
    ta = start_of(row, n1, n2, ts0, ts1, ts2)
    classes = cols
    if width is not None:
        classes = tl.minimum(tl.load(width), cols)
    each = unit(classes, SMOOTH, PART, DOUBLE)
    if SOFT:
        label, valid, share = row.to(tl.int32), live, tl.full(row.shape, 1.0, kind)
    else:
        label, valid, share = own(target, weight, row, live, classes, IGNORE, SMOOTH, DOUBLE, PART)
    read = live if ALL else valid
    stop = tl.where(tl.max(read.to(tl.int32), 0) > 0, classes, 0)

    top = tl.full(row.shape, float("-inf"), kind)
    total = tl.zeros(row.shape, kind)
    drawn = tl.zeros(row.shape, kind)
    weights = tl.zeros(row.shape, kind)
    high = tl.full(row.shape, float("-inf"), kind)
    arg = tl.zeros(row.shape, tl.int32)
    tilt = tl.zeros(row.shape, kind)
    if SINGLE:
        z, top, total, drawn, weights, high, arg, tilt = step(
            x, xa, xc, target, weight, each, ta, tc, 0, read, classes,
            top, total, drawn, weights, high, arg, tilt, best, entropy,
            SMOOTH, SCALE, CAP, SOFT, COLS, EVEN, WIDE, DOUBLE, "",
        )  # fmt: skip
    else:
        for start in range(0, stop // COLS * COLS, COLS):
            _, top, total, drawn, weights, high, arg, tilt = step(
                x, xa, xc, target, weight, each, ta, tc, start, read, classes,
                top, total, drawn, weights, high, arg, tilt, best, entropy,
                SMOOTH, SCALE, CAP, SOFT, COLS, True, WIDE, DOUBLE, "evict_last",
            )  # fmt: skip
        if not EVEN:
            _, top, total, drawn, weights, high, arg, tilt = step(
                x, xa, xc, target, weight, each, ta, tc, classes // COLS * COLS, read, classes,
                top, total, drawn, weights, high, arg, tilt, best, entropy,
                SMOOTH, SCALE, CAP, SOFT, COLS, False, WIDE, DOUBLE, "evict_last",
            )  # fmt: skip

    picked = top
    if not SOFT:
        picked = logit(x, xa + label.to(tl.int64) * xc, valid, SCALE, CAP, "")
    value, found, bulk, push, scale = settle(
        top, tl.log(total), picked, share, valid, drawn, weights, weight, total_weight, each, factor, zfactor, row,
        live, classes, fs, SMOOTH, ZSCALE, SOFT, DOUBLE, PART,
    )  # fmt: skip
    tl.store(loss + row, value, live)
    tl.store(lse + row, found, live)
    tl.store(mass + row, bulk, live)
    if entropy is not None:
        # Of no class there is nothing to be uncertain about; an infinite score has no softmax.
        spent = tl.log(total) - tilt / total
        spent = tl.where(tl.abs(top) == float("inf"), float("nan"), spent)
        if PART:
            spent = tl.where(top == float("-inf"), 0.0, spent)
        tl.store(entropy + row, spent, live)
    if best is not None:
        tl.store(best + row, arg.to(best.dtype.element_ty), live)
    if peak is not None:
        tl.store(peak + row, high, live)
    if grad is not None:
        ga = start_of(row, n1, n2, gs0, gs1, gs2)
        # A row whose largest score is infinite has no softmax: NaN, as in PyTorch and JAX.
        over = tl.where(tl.abs(top) == float("inf"), float("nan"), 1.0 / total)
        if SINGLE:
            inside = within(live, 0, cols, COLS, EVEN)
            use = within(live, 0, classes, COLS, EVEN) & valid[:, None]
            gradient(
                z, target, weight, each, ta, tc, grad, ga, gc, label, share, push, scale, top, over, None, None,
                0, use, inside, classes, SMOOTH, SCALE, CAP, SOFT, COLS, WIDE, DOUBLE,
            )  # fmt: skip
        else:
            for start in range(0, classes // COLS * COLS, COLS):
                again(
                    x, xa, xc, target, weight, each, ta, tc, grad, ga, gc, label, share, push, scale, top, over, None,
                    None, start, live, valid, cols, classes, SMOOTH, SCALE, CAP, SOFT, COLS, True, WIDE, DOUBLE,
                )  # fmt: skip
            if not EVEN:
                # With padding more than one block may be left.
                for start in range(classes // COLS * COLS, cols, COLS):
                    again(
                        x, xa, xc, target, weight, each, ta, tc, grad, ga, gc, label, share, push, scale, top, over,
                        None, None, start, live, valid, cols, classes, SMOOTH, SCALE, CAP, SOFT, COLS, False, WIDE,
                        DOUBLE,
                    )  # fmt: skip


@triton.jit
def again(
    x, xa, xc, target, weight, each, ta, tc, grad, ga, gc, label, share, push, scale, top, over, bend, entropy,
    start, live, read, cols, classes,
    SMOOTH: tl.constexpr, SCALE: tl.constexpr, CAP: tl.constexpr, SOFT: tl.constexpr,
    COLS: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    """Read a block for the last time and store its gradient."""
    inside = within(live, start, cols, COLS, EVEN)
    use = within(live, start, classes, COLS, EVEN) & read[:, None]
    # Read with the padding: the bound of the columns divides into wide accesses where that of the classes may not.
    some = inside & read[:, None]
    z = logit(x, xa[:, None] + place(start, xc, COLS, WIDE)[None, :], some, SCALE, CAP, "evict_first")
    if not EVEN:
        z = tl.where(use, z, float("-inf"))
    gradient(
        z, target, weight, each, ta, tc, grad, ga, gc, label, share, push, scale, top, over, bend, entropy,
        start, use, inside, classes, SMOOTH, SCALE, CAP, SOFT, COLS, WIDE, DOUBLE,
    )  # fmt: skip


@triton.jit
def cross_entropy_backward(
    x, target, weight, lse, mass, up, extra, width, entropy, bend, grad,
    rows, cols, n1, n2, xs0, xs1, xs2, xc, ts0, ts1, ts2, tc, gs0, gs1, gs2, gc, us, es,
    IGNORE: tl.constexpr, SMOOTH: tl.constexpr, SCALE: tl.constexpr, CAP: tl.constexpr,
    SOFT: tl.constexpr, DOUBLE: tl.constexpr, PART: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """grad from what the forward left, the losses' upstream gradient ``up``, lse's ``extra`` and entropy's ``bend``.

    extra, and entropy with bend, may be None.
    ``us`` and ``es`` are the strides of ``up`` and ``extra``, 0 where one number stands for all rows. Each program of
    the grid (row tiles, column tiles) writes one tile.
    """
    kind: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = row < rows
    start = tl.program_id(1) * COLS
    xa = start_of(row, n1, n2, xs0, xs1, xs2)
    ta = start_of(row, n1, n2, ts0, ts1, ts2)
    ga = start_of(row, n1, n2, gs0, gs1, gs2)
    classes = cols
    if width is not None:
        classes = tl.minimum(tl.load(width), cols)
    each = unit(classes, SMOOTH, PART, DOUBLE)
    if SOFT:
        label, valid, share = row.to(tl.int32), live, tl.full(row.shape, 1.0, kind)
    else:
        label, valid, share = own(target, weight, row, live, classes, IGNORE, SMOOTH, DOUBLE, PART)
    read = valid
    more = tl.zeros(row.shape, kind)
    if extra is not None:
        more = tl.load(extra + row * es, live, other=0.0).to(kind)
        read = valid | (live & (more != 0.0))
    curve = None
    spent = None
    if bend is not None:
        curve = tl.load(bend + row, live, other=0.0).to(kind)
        spent = tl.load(entropy + row, live, other=0.0).to(kind)
        read = read | (live & (curve != 0.0))
    scale = tl.where(valid, tl.load(up + row * us, valid, other=0.0).to(kind), 0.0)
    push = tl.where(valid, tl.load(mass + row, live, other=0.0).to(kind) * scale, 0.0)
    push += more
    top = tl.load(lse + row, live, other=0.0).to(kind)
    over = tl.where(tl.abs(top) == float("inf"), float("nan"), tl.full(row.shape, 1.0, kind))
    if PART:  # no finite score in this part
        over = tl.where(top == float("-inf"), 0.0, over)
    again(
        x, xa, xc, target, weight, each, ta, tc, grad, ga, gc, label, share, push, scale, finite(top), over, curve,
        spent, start, live, read, cols, classes, SMOOTH, SCALE, CAP, SOFT, COLS, EVEN, WIDE, DOUBLE,
    )  # fmt: skip


@triton.jit
def cross_entropy_rescale(grad, up, result, size, programs, BLOCK: tl.constexpr):
    """result = grad * up for one number ``up``, in the memory of grad; nothing is read or written where it is 1."""
    by = tl.load(up)
    if by != 1.0:
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        for _ in range(tl.program_id(0), tl.cdiv(size, BLOCK), programs):
            value = widen(tl.load(grad + at, at < size, other=0.0))
            tl.store(result + at, (value * by).to(result.dtype.element_ty), at < size)
            at += programs * BLOCK
