"""Cross-entropy with its gradient for long rows: a row over PARTS programs, read once from memory and written once.

Each program holds COLS scores of a row in registers, as they are in memory, publishes their maximum and sum of
exponentials and takes up the others' (``exchange``). Labels are class numbers, and without smoothing classes may have
weights; everything else is as in ``cross_entropy``.

Exponentials are powers of two of ``z k - t``, rounded once, with k = log2(e) and t = top k: whatever the rounding of t,
sum and gradient have the same.
"""

import triton
import triton.language as tl

from onelaunch.kernels.cross_entropy import own, settle, unit
from onelaunch.kernels.exchange import collect, leave, opened, word
from onelaunch.kernels.rows import base, finite, place, saturate, share_of, start_of


@triton.jit
def score(x, use, SCALE: tl.constexpr, CAP: tl.constexpr, PTX: tl.constexpr):
    """Scores, −inf where not ``use``: of the cap's doing, or a scale's; otherwise the padding is −inf as it is."""
    z = opened(x, PTX)
    if SCALE != 1.0:
        z = z * SCALE
    if CAP is not None:
        z = saturate(z / CAP) * CAP
    if CAP is not None or SCALE <= 0.0:
        z = tl.where(use, z, float("-inf"))
    return z


@triton.jit
def extras(z, use, start, best, SMOOTH: tl.constexpr, COLS: tl.constexpr):
    """Σ z of a piece and the first column of its largest score (NaN counts as such), each 0 where nobody asks."""
    drawn, arg = tl.zeros((), tl.float32), tl.zeros((), tl.int32)
    if SMOOTH != 0.0:
        drawn = tl.sum(tl.where(use, z, 0.0), 0)
    if best is not None:
        key = tl.where(z != z, float("inf"), z)
        arg = tl.min(tl.where(key == tl.max(key, 0), start + tl.arange(0, COLS), 2147483647), 0)
    return drawn, arg


@triton.jit
def together(
    words, row, rows, part, high, total, drawn, arg, best,
    SMOOTH: tl.constexpr, PARTS: tl.constexpr, PLACES: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """The same four numbers for the whole row: largest score, sum of powers relative to it, Σ z, argmax."""
    if PARTS > 1:
        if SMOOTH != 0.0 or best is not None:
            leave(words, rows + row, part, word(drawn, arg + 1), PARTS)
        leave(words, row, part, word(high, total), PARTS)
        tops, totals, use = collect(words, row, PARTS, PLACES, PTX)
        tops = tl.where(use, tops.to(tl.float32, bitcast=True), float("-inf"))
        totals = tl.where(use, totals.to(tl.float32, bitcast=True), 0.0)
        high = tl.max(tops, 0)
        total = tl.sum(totals * share_of(tops, high), 0)
        if SMOOTH != 0.0 or best is not None:
            drawns, args, use = collect(words, rows + row, PARTS, PLACES, PTX)
            drawn = tl.sum(tl.where(use, drawns.to(tl.float32, bitcast=True), 0.0), 0)
            keys = tl.where(totals != totals, float("inf"), tops)
            arg = tl.min(tl.where(use & (keys == tl.max(keys, 0)), args - 1, 2147483647), 0)
    return high, total, drawn, arg


@triton.jit
def cross_entropy_split(
    x, target, weight, total_weight, factor, zfactor, width, loss, lse, mass, best, peak, entropy, grad, words,
    rows, cols, n1, n2, xs0, xs1, xs2, xc, ts0, ts1, ts2, tc, gs0, gs1, gs2, gc, fs,
    IGNORE: tl.constexpr, SMOOTH: tl.constexpr, ZSCALE: tl.constexpr, SCALE: tl.constexpr, CAP: tl.constexpr,
    ALL: tl.constexpr, PART: tl.constexpr, COLS: tl.constexpr, PARTS: tl.constexpr, PLACES: tl.constexpr,
    PTX: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Arrays as for ``cross_entropy_forward``, but no entropy; logits of 16 or 32 bits; words: i64[n, rows, PARTS]."""
    row = (tl.program_id(0) // PARTS).to(tl.int64)
    part = tl.program_id(0) % PARTS
    start = part * COLS
    inside = start + tl.arange(0, COLS) < cols
    use = inside
    classes = cols
    if width is not None:
        classes = tl.minimum(tl.load(width), cols)
        use = start + tl.arange(0, COLS) < classes
    each = unit(classes, SMOOTH, PART, False)
    label, valid, share = own(target, weight, row, row < rows, classes, IGNORE, SMOOTH, False, PART)
    to = grad + start_of(row, n1, n2, gs0, gs1, gs2)
    out = to + place(start, gc, COLS, WIDE)
    mine = part == label // COLS
    if valid | ALL:
        at = x + start_of(row, n1, n2, xs0, xs1, xs2)
        held = tl.load(at + place(start, xc, COLS, WIDE), inside, other=float("-inf"))
        if width is not None:  # read with the padding, whose bound divides into wide accesses
            held = tl.where(use, held, tl.full((COLS,), float("-inf"), held.dtype))
        # Read before a store to it: the gradient may lie in the memory of the logits, this one's in this program's.
        picked = score(tl.load(at + label.to(tl.int64) * xc, mine, other=0.0), mine, SCALE, CAP, False)
        top = score(tl.max(score(held, use, SCALE, None, PTX), 0), True, 1.0, CAP, False)
        k, t = base(finite(top))
        z = score(held, use, SCALE, CAP, PTX)
        total = tl.sum(tl.exp2(tl.fma(z, k, -t)), 0)
        drawn, arg = extras(z, use, start, best, SMOOTH, COLS)
        top, total, drawn, arg = together(
            words, row, rows, part, top, total, drawn, arg, best, SMOOTH, PARTS, PLACES, PTX
        )  # fmt: skip
        k, t = base(finite(top))
        # The sum is of powers relative to t; the logarithm's is relative to top.
        rest = (tl.log2(total) - tl.fma(finite(top), k, -t)) * 0.6931471805599453
        value, found, bulk, push, scale = settle(
            top, rest, picked, share, valid, drawn * each, drawn, weight, total_weight, each, factor, zfactor,
            row, row < rows, classes, fs, SMOOTH, ZSCALE, False, False, PART,
        )  # fmt: skip
        # A row whose largest score is infinite has no softmax: NaN, as in PyTorch and JAX.
        over = tl.where(tl.abs(top) == float("inf"), float("nan"), push / total)
        steady = tl.where(valid, scale * each, 0.0)
        z = score(held, use, SCALE, CAP, PTX)
        d = slope(tl.exp2(tl.fma(z, k, -t)) * over - steady, z, SCALE, CAP)
        if ALL or width is not None:
            d = tl.where(use & valid, d, 0.0)
        tl.store(out, d.to(grad.dtype.element_ty), inside, cache_modifier=".cs")
        if mine:
            tl.store(loss + row, value)
            tl.store(lse + row, found)
            tl.store(mass + row, bulk)
            if best is not None:
                tl.store(best + row, arg.to(best.dtype.element_ty))
            if peak is not None:
                tl.store(peak + row, tl.where(total != total, float("inf"), top))  # NaN counts as the largest
            if valid:
                last = slope(tl.exp2(tl.fma(picked, k, -t)) * over - steady - share * scale, picked, SCALE, CAP)
                tl.debug_barrier()  # after the piece's store, of which this overwrites an element
                tl.store(to + label.to(tl.int64) * gc, last.to(grad.dtype.element_ty))
    else:
        tl.store(out, tl.zeros((COLS,), grad.dtype.element_ty), inside, cache_modifier=".cs")
        if part == 0:
            tl.store(loss + row, 0.0)
            tl.store(lse + row, float("-inf"))
            tl.store(mass + row, 0.0)
            if best is not None:
                tl.store(best + row, tl.zeros((), best.dtype.element_ty))
            if peak is not None:
                tl.store(peak + row, float("-inf"))


@triton.jit
def slope(d, z, SCALE: tl.constexpr, CAP: tl.constexpr):
    """A gradient with respect to scores as one with respect to logits."""
    if SCALE != 1.0:
        d = d * SCALE
    if CAP is not None:
        t = z / CAP
        d = d * (1.0 - t * t)
    return d
