"""Attention over a block-sparse layout, the probabilities never written; forward.

A program takes ROWS queries of a block row of one head and walks its blocks in steps of DEPTH keys, with the maximum
and sum of softmax carried along (Milakov and Gimelshein 2018; Dao 2022). Scores are ``cap(q·k * SCALE)`` and masks, in
f32 and in units of log 2. A line's blocks are plain ones (``PLAIN``) or those whose elements are tested one by one.
"""

import triton
import triton.language as tl

from onelaunch.kernels.blocks import advance, entries, entry_at, inner, live, positions, steps
from onelaunch.kernels.rows import saturate, widen


@triton.jit
def fetch(pointer, inside, d, DIM: tl.constexpr, WIDTH: tl.constexpr, PLAIN: tl.constexpr):
    """A tile of rows, 0 beyond its head dim and, unless PLAIN, outside."""
    if not PLAIN:
        return tl.load(pointer, inside[:, None] & (d < DIM)[None, :], other=0.0)
    elif DIM == WIDTH:
        return tl.load(pointer)
    else:
        return tl.load(pointer, (d < DIM)[None, :], other=0.0)


@triton.jit
def bent(s, SCALE: tl.constexpr, CAP: tl.constexpr):
    """Scores in units of log 2: ``cap(s * SCALE) * log2(e)``."""
    if CAP is None:
        return s * (SCALE * 1.4426950408889634)
    else:
        return saturate(s * (SCALE / CAP)) * (CAP * 1.4426950408889634)


@triton.jit
def masked(
    z, m, n, inside, pad, mask, queries, keys, pn, mm, mn,
    OFFSET: tl.constexpr, PADADD: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """z with its masks, −inf where a query m must not see a key n; m, n and inside broadcast to z.

    MASK: "add", "mul" (mask leaves out where it is 0), or the extent of relative logits: their row m has in its last
    entry what is added for key m, before it that for the key before, and so on.
    """
    use = inside & (m < queries) & (n < keys)
    if OFFSET is not None:
        use = use & (n <= m + OFFSET)
    if pad is not None:
        value = tl.load(pad + n.to(tl.int64) * pn, n < keys, other=0)
        if PADADD:
            z += widen(value) * 1.4426950408889634
        else:
            use = use & (value != 0)
    if mask is not None:
        if MASK == "add" or MASK == "mul":
            value = tl.load(mask + m.to(tl.int64) * mm + n.to(tl.int64) * mn, use, other=0)
        else:
            at = n - m + (MASK - 1)
            held = use & (at >= 0) & (at < MASK)
            value = tl.load(mask + m.to(tl.int64) * mm + at.to(tl.int64) * mn, held, other=0)
        if MASK == "mul":
            use = use & (value != 0)
        else:
            z += widen(value) * 1.4426950408889634
    return tl.where(use, z, float("-inf"))


@triton.jit
def attend(
    acc, top, total, q, k, v, lines, first, stop, m, pad, mask,
    queries, keys, kn, kd, vn, vd, pn, mm, mn,
    SCALE: tl.constexpr, CAP: tl.constexpr, OFFSET: tl.constexpr, PADADD: tl.constexpr, MASK: tl.constexpr,
    BLOCK: tl.constexpr, DEPTH: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, VDIM: tl.constexpr,
    VWIDTH: tl.constexpr, PLAIN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attend to blocks ``first`` to ``stop`` of a line: the new sum of values, maximum and sum of weights."""
    d = tl.arange(0, WIDTH)
    e = tl.arange(0, VWIDTH)
    within = (tl.arange(0, DEPTH) % BLOCK).to(tl.int64)
    k += within[:, None] * kn + d[None, :] * kd
    v += within[:, None] * vn + e[None, :] * vd
    line = entries(lines, first, stop, BLOCK, DEPTH)
    for step in range(0, steps(first, stop, BLOCK, DEPTH)):
        at = entry_at(first, step, BLOCK, DEPTH)
        sub = inner(step, BLOCK, DEPTH)
        n = positions(line, sub, BLOCK, DEPTH)
        inside = live(at, stop, BLOCK, DEPTH)
        ks = fetch(k + advance(line, sub, kn, BLOCK, DEPTH), inside & (n < keys), d, DIM, WIDTH, PLAIN)
        s = tl.dot(q, tl.trans(ks), input_precision=PRECISION, out_dtype=acc.dtype)
        if PLAIN and CAP is None and SCALE > 0:
            shift = tl.maximum(top, tl.max(s, 1) * (SCALE * 1.4426950408889634))
            weight = tl.exp2(s * (SCALE * 1.4426950408889634) - shift[:, None])
            shrink = tl.exp2(top - shift)
            top = shift
        else:
            z = bent(s, SCALE, CAP)
            if not PLAIN:
                z = masked(
                    z, m[:, None], n[None, :], inside[None, :], pad, mask, queries, keys, pn, mm, mn,
                    OFFSET, PADADD, MASK,
                )  # fmt: skip
            higher = tl.maximum(top, tl.max(z, 1))
            shift = tl.where(higher == float("-inf"), 0.0, higher)
            weight = tl.exp2(z - shift[:, None])
            shrink = tl.exp2(top - shift)
            top = higher
        total = total * shrink + tl.sum(weight, 1)
        acc = acc * shrink[:, None]
        vs = fetch(v + advance(line, sub, vn, BLOCK, DEPTH), inside & (n < keys), e, VDIM, VWIDTH, PLAIN)
        line = entries(lines, entry_at(first, step + 1, BLOCK, DEPTH), stop, BLOCK, DEPTH)
        acc = tl.dot(weight.to(vs.dtype), vs, acc, input_precision=PRECISION, out_dtype=acc.dtype)
    return acc, top, total


@triton.jit
def placed(index, order, count, lines, heads, batches, planes, share):
    """Batch item, head, line in its plane, that item's place among those with layouts of their own, and flat line.

    order: i32 (count,), items ``(batch item of the layout * heads + head) * lines + line``; ``batches`` such items (1:
    all share one layout) follow each other; ``share`` heads have a plane in common, of ``planes`` an item.
    """
    item = tl.load(order + index % count)
    line = item % lines
    unit = item // lines
    head = unit % heads
    own = unit // heads
    z = (index // count).to(tl.int64) * batches + own
    return z, head.to(tl.int64), line, own, (own * planes + head // share) * lines + line


@triton.jit
def block_attention(
    q, k, v, pad, mask, order, bounds, lines, out, lse,
    count, rows, heads, group, batches, planes, share, queries, keys,
    qz, qh, qm, qd, kz, kh, kn, kd, vz, vh, vn, vd, oz, oh, om, od, pz, ph, pn, mz, mh, mm, mn,
    SCALE: tl.constexpr, CAP: tl.constexpr, OFFSET: tl.constexpr, PADADD: tl.constexpr, MASK: tl.constexpr,
    TESTED: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
    DIM: tl.constexpr, WIDTH: tl.constexpr, VDIM: tl.constexpr, VWIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out (batch, heads, queries, VDIM) and lse (batch, heads, queries), f32 or f64, −inf for a query without keys.

    bounds: i32 (lines of all planes, 3): a line's first entry, first entry with tests, end. ``group`` query heads share
    a key head, ``share`` a plane of the layout. TESTED: 0 no block has tests, 1 some have, 2 all have.
    """
    index = tl.program_id(0)
    z, head, row, _, flat = placed(index // (BLOCK // ROWS), order, count, rows, heads, batches, planes, share)
    m = row * BLOCK + index % (BLOCK // ROWS) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, WIDTH)
    e = tl.arange(0, VWIDTH)
    long = m.to(tl.int64)
    kept = m < queries
    qs = fetch(q + z * qz + head * qh + long[:, None] * qm + d[None, :] * qd, kept, d, DIM, WIDTH, False)
    k += z * kz + head // group * kh
    v += z * vz + head // group * vh
    if pad is not None:
        pad += z * pz + head * ph
    if mask is not None:
        mask += z * mz + head * mh
    first = tl.load(bounds + flat * 3)
    middle = tl.load(bounds + flat * 3 + 1)
    stop = tl.load(bounds + flat * 3 + 2)
    acc = widen(tl.zeros((ROWS, VWIDTH), v.dtype.element_ty))
    total = widen(tl.zeros((ROWS,), v.dtype.element_ty))
    top = total - float("inf")
    if TESTED < 2:
        acc, top, total = attend(
            acc, top, total, qs, k, v, lines, first, middle, m, pad, mask, queries, keys, kn, kd, vn, vd, pn, mm, mn,
            SCALE, CAP, OFFSET, PADADD, MASK, BLOCK, DEPTH, DIM, WIDTH, VDIM, VWIDTH, True, PRECISION,
        )  # fmt: skip
    if TESTED > 0:
        acc, top, total = attend(
            acc, top, total, qs, k, v, lines, middle, stop, m, pad, mask, queries, keys, kn, kd, vn, vd, pn, mm, mn,
            SCALE, CAP, OFFSET, PADADD, MASK, BLOCK, DEPTH, DIM, WIDTH, VDIM, VWIDTH, False, PRECISION,
        )  # fmt: skip
    empty = total == 0.0
    value = acc * tl.where(empty, 0.0, 1.0 / total)[:, None]
    to = out + z * oz + head * oh + long[:, None] * om + e[None, :] * od
    tl.store(to, value.to(out.dtype.element_ty), kept[:, None] & (e < VDIM)[None, :])
    sum2 = tl.where(empty, float("-inf"), top + tl.log2(total))
    tl.store(lse + (z * heads + head) * queries + m, sum2 * 0.6931471805599453, kept)
