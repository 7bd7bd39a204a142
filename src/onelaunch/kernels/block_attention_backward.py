"""Attention over a block-sparse layout, backward: two passes, one over rows for dq, one over columns for dk and dv.

Each program adds up its own results in the order of its table, so that gradients are the same at every call.
"""

import triton
import triton.language as tl

from onelaunch.kernels.block_attention import bent, fetch, masked, placed
from onelaunch.kernels.blocks import advance, entries, entry_at, inner, live, positions, steps
from onelaunch.kernels.rows import widen


@triton.jit
def block_attention_delta(
    out, dout, dlse, delta, queries, heads, oz, oh, om, od, gz, gh, gm, gd,
    ROWS: tl.constexpr, VDIM: tl.constexpr, VWIDTH: tl.constexpr,
):  # fmt: skip
    """delta (batch, heads, queries) = Σ out·dout − dlse, what softmax's gradient subtracts."""
    tiles = tl.cdiv(queries, ROWS)
    index = tl.program_id(0)
    m = index % tiles * ROWS + tl.arange(0, ROWS)
    z = (index // tiles // heads).to(tl.int64)
    head = (index // tiles % heads).to(tl.int64)
    e = tl.arange(0, VWIDTH)
    long = m.to(tl.int64)
    kept = m < queries
    o = fetch(out + z * oz + head * oh + long[:, None] * om + e[None, :] * od, kept, e, VDIM, VWIDTH, False)
    g = fetch(dout + z * gz + head * gh + long[:, None] * gm + e[None, :] * gd, kept, e, VDIM, VWIDTH, False)
    value = tl.sum(widen(o) * widen(g), 1)
    at = (z * heads + head) * queries + m
    if dlse is not None:
        value -= widen(tl.load(dlse + at, kept, other=0.0))
    tl.store(delta + at, value, kept)


@triton.jit
def weights(z, lse, PLAIN: tl.constexpr):
    """Softmax of scores from their logsumexp, both in units of log 2 (exactly 0 where left out, whole rows too)."""
    if PLAIN:
        return tl.exp2(z - lse)
    else:
        return tl.where(z == float("-inf"), 0.0, tl.exp2(z - lse))


@triton.jit
def slope(z, ds, CAP: tl.constexpr):
    """The gradient before the cap of that after it; z is the capped score in units of log 2."""
    if CAP is None:
        return ds
    else:
        t = z * (0.6931471805599453 / CAP)
        return ds * (1.0 - t * t)


@triton.jit
def gather_dq(
    dq, q, g, lse, delta, k, v, lines, first, stop, m, pad, mask,
    queries, keys, kn, kd, vn, vd, pn, mm, mn,
    SCALE: tl.constexpr, CAP: tl.constexpr, OFFSET: tl.constexpr, PADADD: tl.constexpr, MASK: tl.constexpr,
    BLOCK: tl.constexpr, DEPTH: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, VDIM: tl.constexpr,
    VWIDTH: tl.constexpr, PLAIN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq (before its scale) with what blocks ``first`` to ``stop`` of a row add."""
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
        vs = fetch(v + advance(line, sub, vn, BLOCK, DEPTH), inside & (n < keys), e, VDIM, VWIDTH, PLAIN)
        line = entries(lines, entry_at(first, step + 1, BLOCK, DEPTH), stop, BLOCK, DEPTH)
        before = bent(tl.dot(q, tl.trans(ks), input_precision=PRECISION, out_dtype=dq.dtype), SCALE, CAP)
        dp = tl.dot(g, tl.trans(vs), input_precision=PRECISION, out_dtype=dq.dtype)
        z = before
        if not PLAIN:
            z = masked(
                z, m[:, None], n[None, :], inside[None, :], pad, mask, queries, keys, pn, mm, mn,
                OFFSET, PADADD, MASK,
            )  # fmt: skip
        ds = slope(before, weights(z, lse[:, None], PLAIN) * (dp - delta[:, None]), CAP)
        dq = tl.dot(ds.to(ks.dtype), ks, dq, input_precision=PRECISION, out_dtype=dq.dtype)
    return dq


@triton.jit
def block_attention_dq(
    q, k, v, pad, mask, order, bounds, lines, dout, lse, delta, dq,
    count, rows, heads, group, batches, planes, share, queries, keys,
    qz, qh, qm, qd, kz, kh, kn, kd, vz, vh, vn, vd, gz, gh, gm, gd, rz, rh, rm, rd, pz, ph, pn, mz, mh, mm, mn,
    SCALE: tl.constexpr, CAP: tl.constexpr, OFFSET: tl.constexpr, PADADD: tl.constexpr, MASK: tl.constexpr,
    TESTED: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
    DIM: tl.constexpr, WIDTH: tl.constexpr, VDIM: tl.constexpr, VWIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq, one program for ROWS queries; tables as in the forward."""
    index = tl.program_id(0)
    z, head, row, _, flat = placed(index // (BLOCK // ROWS), order, count, rows, heads, batches, planes, share)
    m = row * BLOCK + index % (BLOCK // ROWS) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, WIDTH)
    e = tl.arange(0, VWIDTH)
    long = m.to(tl.int64)
    kept = m < queries
    qs = fetch(q + z * qz + head * qh + long[:, None] * qm + d[None, :] * qd, kept, d, DIM, WIDTH, False)
    g = fetch(dout + z * gz + head * gh + long[:, None] * gm + e[None, :] * gd, kept, e, VDIM, VWIDTH, False)
    at = (z * heads + head) * queries + m
    sums = tl.load(lse + at, kept, other=float("inf")) * 1.4426950408889634
    shares = tl.load(delta + at, kept, other=0.0)
    k += z * kz + head // group * kh
    v += z * vz + head // group * vh
    if pad is not None:
        pad += z * pz + head * ph
    if mask is not None:
        mask += z * mz + head * mh
    first = tl.load(bounds + flat * 3)
    middle = tl.load(bounds + flat * 3 + 1)
    stop = tl.load(bounds + flat * 3 + 2)
    total = widen(tl.zeros((ROWS, WIDTH), q.dtype.element_ty))
    if TESTED < 2:
        total = gather_dq(
            total, qs, g, sums, shares, k, v, lines, first, middle, m, pad, mask,
            queries, keys, kn, kd, vn, vd, pn, mm, mn,
            SCALE, CAP, OFFSET, PADADD, MASK, BLOCK, DEPTH, DIM, WIDTH, VDIM, VWIDTH, True, PRECISION,
        )  # fmt: skip
    if TESTED > 0:
        total = gather_dq(
            total, qs, g, sums, shares, k, v, lines, middle, stop, m, pad, mask,
            queries, keys, kn, kd, vn, vd, pn, mm, mn,
            SCALE, CAP, OFFSET, PADADD, MASK, BLOCK, DEPTH, DIM, WIDTH, VDIM, VWIDTH, False, PRECISION,
        )  # fmt: skip
    to = dq + z * rz + head * rh + long[:, None] * rm + d[None, :] * rd
    tl.store(to, (total * SCALE).to(dq.dtype.element_ty), kept[:, None] & (d < DIM)[None, :])


@triton.jit
def gather_dkv(
    dk, dv, ks, vs, q, g, lse, delta, lines, first, stop, n, pad, mask,
    queries, keys, qm, qd, gm, gd, pn, mm, mn,
    SCALE: tl.constexpr, CAP: tl.constexpr, OFFSET: tl.constexpr, PADADD: tl.constexpr, MASK: tl.constexpr,
    BLOCK: tl.constexpr, DEPTH: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, VDIM: tl.constexpr,
    VWIDTH: tl.constexpr, PLAIN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk (before its scale) and dv with what blocks ``first`` to ``stop`` of a column add. A tile is keys × queries."""
    d = tl.arange(0, WIDTH)
    e = tl.arange(0, VWIDTH)
    within = (tl.arange(0, DEPTH) % BLOCK).to(tl.int64)
    q += within[:, None] * qm + d[None, :] * qd
    g += within[:, None] * gm + e[None, :] * gd
    line = entries(lines, first, stop, BLOCK, DEPTH)
    for step in range(0, steps(first, stop, BLOCK, DEPTH)):
        at = entry_at(first, step, BLOCK, DEPTH)
        sub = inner(step, BLOCK, DEPTH)
        m = positions(line, sub, BLOCK, DEPTH)
        inside = live(at, stop, BLOCK, DEPTH)
        kept = inside & (m < queries)
        qs = fetch(q + advance(line, sub, qm, BLOCK, DEPTH), kept, d, DIM, WIDTH, PLAIN)
        gs = fetch(g + advance(line, sub, gm, BLOCK, DEPTH), kept, e, VDIM, VWIDTH, PLAIN)
        if PLAIN:
            sums = tl.load(lse + m) * 1.4426950408889634
            shares = tl.load(delta + m)
        else:
            sums = tl.load(lse + m, kept, other=0.0) * 1.4426950408889634
            shares = tl.load(delta + m, kept, other=0.0)
        line = entries(lines, entry_at(first, step + 1, BLOCK, DEPTH), stop, BLOCK, DEPTH)
        before = bent(tl.dot(ks, tl.trans(qs), input_precision=PRECISION, out_dtype=dk.dtype), SCALE, CAP)
        z = before
        if not PLAIN:
            z = masked(
                z, m[None, :], n[:, None], inside[None, :], pad, mask, queries, keys, pn, mm, mn,
                OFFSET, PADADD, MASK,
            )  # fmt: skip
        weight = weights(z, sums[None, :], PLAIN)
        dv = tl.dot(weight.to(gs.dtype), gs, dv, input_precision=PRECISION, out_dtype=dv.dtype)
        dp = tl.dot(vs, tl.trans(gs), input_precision=PRECISION, out_dtype=dk.dtype)
        ds = slope(before, weight * (dp - shares[None, :]), CAP)
        dk = tl.dot(ds.to(qs.dtype), qs, dk, input_precision=PRECISION, out_dtype=dk.dtype)
    return dk, dv


@triton.jit
def block_attention_dkv(
    q, k, v, pad, mask, order, bounds, lines, dout, lse, delta, dk, dv,
    count, columns, heads, group, batches, planes, share, queries, keys,
    qz, qh, qm, qd, kz, kh, kn, kd, vz, vh, vn, vd, gz, gh, gm, gd,
    sz, sh, sn, sd, tz, th, tn, td, pz, ph, pn, mz, mh, mm, mn,
    SCALE: tl.constexpr, CAP: tl.constexpr, OFFSET: tl.constexpr, PADADD: tl.constexpr, MASK: tl.constexpr,
    TESTED: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
    DIM: tl.constexpr, WIDTH: tl.constexpr, VDIM: tl.constexpr, VWIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk and dv, one program for ROWS keys and the ``group`` query heads that share them.

    order: items of key heads (``heads`` counts query heads); bounds: of columns, blocks with tests before the others.
    """
    index = tl.program_id(0)
    z, head, column, item, _ = placed(index // (BLOCK // ROWS), order, count, columns, heads // group, batches, 1, 1)
    n = column * BLOCK + index % (BLOCK // ROWS) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, WIDTH)
    e = tl.arange(0, VWIDTH)
    long = n.to(tl.int64)
    kept = n < keys
    ks = fetch(k + z * kz + head * kh + long[:, None] * kn + d[None, :] * kd, kept, d, DIM, WIDTH, False)
    vs = fetch(v + z * vz + head * vh + long[:, None] * vn + e[None, :] * vd, kept, e, VDIM, VWIDTH, False)
    total = widen(tl.zeros((ROWS, WIDTH), k.dtype.element_ty))
    sums = widen(tl.zeros((ROWS, VWIDTH), v.dtype.element_ty))
    for member in range(0, group):
        own = head * group + member
        flat = (item * planes + own // share) * columns + column
        first = tl.load(bounds + flat * 3)
        middle = tl.load(bounds + flat * 3 + 1)
        stop = tl.load(bounds + flat * 3 + 2)
        queries_of = q + z * qz + own * qh
        gradients = dout + z * gz + own * gh
        at = (z * heads + own) * queries
        seen = pad
        if pad is not None:
            seen = pad + z * pz + own * ph
        shown = mask
        if mask is not None:
            shown = mask + z * mz + own * mh
        if TESTED > 0:
            total, sums = gather_dkv(
                total, sums, ks, vs, queries_of, gradients, lse + at, delta + at, lines, first, middle, n, seen, shown,
                queries, keys, qm, qd, gm, gd, pn, mm, mn,
                SCALE, CAP, OFFSET, PADADD, MASK, BLOCK, DEPTH, DIM, WIDTH, VDIM, VWIDTH, False, PRECISION,
            )  # fmt: skip
        if TESTED < 2:
            total, sums = gather_dkv(
                total, sums, ks, vs, queries_of, gradients, lse + at, delta + at, lines, middle, stop, n, seen, shown,
                queries, keys, qm, qd, gm, gd, pn, mm, mn,
                SCALE, CAP, OFFSET, PADADD, MASK, BLOCK, DEPTH, DIM, WIDTH, VDIM, VWIDTH, True, PRECISION,
            )  # fmt: skip
    to = dk + z * sz + head * sh + long[:, None] * sn + d[None, :] * sd
    tl.store(to, (total * SCALE).to(dk.dtype.element_ty), kept[:, None] & (d < DIM)[None, :])
    to = dv + z * tz + head * th + long[:, None] * tn + e[None, :] * td
    tl.store(to, sums.to(dv.dtype.element_ty), kept[:, None] & (e < VDIM)[None, :])
