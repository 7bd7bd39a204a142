"""Softmax, its logarithm and logsumexp over block-sparse scores, forward and backward.

Values are (items, nnz, B, B). A line is a block row of a plane (a head, or a head of a batch item with a layout of its
own); its blocks lie one after another, so entry (row, j * B + c) of a line is at ``(first + j) * B * B + row * B + c``
and no table of columns is read unless an option asks where a key is. A program takes ROWS rows of a line. A line of at
most J blocks is read once, as the least tile of J, J / 2, ... blocks (LEVELS of them) that holds it; a longer one takes
steps of J blocks, twice.

Scores are ``x * SCALE``, plus the dense arrays rpe and rel (shifted), plus or within attn and pad; f32 (f64 for f64).
Entries whose score is −inf take no part, and a row of which nothing takes part is 0. MODE 0 is softmax, 1 log-softmax,
2 logsumexp.
"""

import triton
import triton.language as tl

from onelaunch.kernels.rows import finite, widen


@triton.jit
def line_of(row_start, order, items, B: tl.constexpr, ROWS: tl.constexpr):
    """The program's line and item, the line's first block and its number of blocks, and rows inside the block."""
    part = tl.program_id(0) % (B // ROWS)
    rest = tl.program_id(0) // (B // ROWS)
    line = rest // items
    if order is not None:
        line = tl.load(order + line)
    first = tl.load(row_start + line)
    count = tl.load(row_start + line + 1) - first
    return line, rest % items, first, count, part * ROWS + tl.arange(0, ROWS)


@triton.jit
def plane_of(dense, item, line, rows, heads, sz, si, sh):
    """A dense array (item, batch item, head, query, key), of any strides, from its plane on."""
    plane = line // rows
    return dense + item.to(tl.int64) * sz + (plane // heads).to(tl.int64) * si + (plane % heads).to(tl.int64) * sh


@triton.jit
def fits(count, J: tl.constexpr, LAST: tl.constexpr):
    """Whether a line of ``count`` blocks is for the tile of J; LAST: there is no smaller one."""
    if LAST:
        return count <= J
    else:
        return (count > J // 2) & (count <= J)


@triton.jit
def places(row, B: tl.constexpr, J: tl.constexpr):
    """Offsets of a tile's entries from the first of its blocks."""
    lane = tl.arange(0, J * B)
    return (row * B)[:, None] + ((lane // B) * (B * B) + lane % B)[None, :]


@triton.jit
def inside(row, left, B: tl.constexpr, J: tl.constexpr):
    """Which entries of a tile are in the ``left`` blocks that the line has there."""
    return (row >= 0)[:, None] & (tl.arange(0, J * B) // B < left)[None, :]


@triton.jit
def dense_at(dense, query, key, sm, sn, use):
    """A plane's entries at queries and keys."""
    at = (query.to(tl.int64) * sm)[:, None] + (key.to(tl.int64) * sn)[None, :]
    return tl.load(dense + at, use, other=0)


@triton.jit
def scores(
    x, column, rpe, attn, pad, rel, row, query, left,
    rm, rn, am, an, pn, lm, ln, extent,
    SCALE: tl.constexpr, CAUSAL: tl.constexpr, ATTN_MUL: tl.constexpr, PAD_MUL: tl.constexpr,
    B: tl.constexpr, J: tl.constexpr,
):  # fmt: skip
    """What softmax is taken of in a tile, −inf for what takes no part. x and column begin at the tile's first block."""
    use = inside(row, left, B, J)
    z = widen(tl.load(x + places(row, B, J), use, other=0.0)) * SCALE
    if CAUSAL or rpe is not None or attn is not None or pad is not None or rel is not None:
        lane = tl.arange(0, J * B)
        key = tl.load(column + lane // B, lane // B < left, other=0) * B + lane % B
        if rpe is not None:
            z += widen(dense_at(rpe, query, key, rm, rn, use)).to(z.dtype)
        if rel is not None:
            # Row q of rel holds extent distances: its last entry is for key q, the one before for key q - 1.
            shifted = key[None, :] - query[:, None] + (extent - 1)
            held = use & (shifted >= 0) & (shifted < extent)
            at = (query.to(tl.int64) * lm)[:, None] + shifted.to(tl.int64) * ln
            z += widen(tl.load(rel + at, held, other=0.0)).to(z.dtype)
        if attn is not None:
            if ATTN_MUL:
                use = use & (dense_at(attn, query, key, am, an, use) != 0)
            else:
                z += widen(dense_at(attn, query, key, am, an, use)).to(z.dtype)
        if pad is not None:
            if PAD_MUL:
                use = use & (dense_at(pad, query, key, 0, pn, use) != 0)
            else:
                z += widen(dense_at(pad, query, key, 0, pn, use)).to(z.dtype)
        if CAUSAL:
            use = use & (key[None, :] <= query[:, None])
    return tl.where(use, z, float("-inf"))


@triton.jit
def normaliser(top, total, MODE: tl.constexpr):
    """1 / sum, or log(sum); 0 where nothing takes part, NaN where the maximum is infinite, as in PyTorch and JAX."""
    total = tl.where(top == float("inf"), float("nan"), total)
    if MODE == 0:
        return tl.where(total == 0, 0.0, 1.0 / total)
    else:
        return tl.where(total == 0, 0.0, tl.log(total))


@triton.jit
def give(y, z, shift, number, row, left, MODE: tl.constexpr, B: tl.constexpr, J: tl.constexpr):
    """Store softmax or its logarithm of a tile."""
    if MODE == 0:
        value = tl.exp(z - shift[:, None]) * number[:, None]
    else:
        value = (z - shift[:, None]) - number[:, None]
    tl.store(y + places(row, B, J), value.to(y.dtype.element_ty), inside(row, left, B, J))


@triton.jit
def once(
    x, y, lse, column, rpe, attn, pad, rel, row, query, count,
    rm, rn, am, an, pn, lm, ln, extent,
    MODE: tl.constexpr, SCALE: tl.constexpr, CAUSAL: tl.constexpr, ATTN_MUL: tl.constexpr, PAD_MUL: tl.constexpr,
    B: tl.constexpr, J: tl.constexpr,
):  # fmt: skip
    """A line that one tile holds."""
    z = scores(
        x, column, rpe, attn, pad, rel, row, query, count, rm, rn, am, an, pn, lm, ln, extent,
        SCALE, CAUSAL, ATTN_MUL, PAD_MUL, B, J,
    )  # fmt: skip
    top = tl.max(z, 1)
    shift = finite(top)
    total = tl.sum(tl.exp(z - shift[:, None]), 1)
    if MODE == 2:
        tl.store(lse + row, (tl.log(total) + shift).to(lse.dtype.element_ty))
    else:
        give(y, z, shift, normaliser(top, total, MODE), row, count, MODE, B, J)


@triton.jit
def in_steps(
    x, y, lse, column, rpe, attn, pad, rel, row, query, count,
    rm, rn, am, an, pn, lm, ln, extent,
    MODE: tl.constexpr, SCALE: tl.constexpr, CAUSAL: tl.constexpr, ATTN_MUL: tl.constexpr, PAD_MUL: tl.constexpr,
    B: tl.constexpr, J: tl.constexpr,
):  # fmt: skip
    """A line of more blocks: maximum and sum first (rescaled step by step), then its values."""
    z = scores(
        x, column, rpe, attn, pad, rel, row, query, count, rm, rn, am, an, pn, lm, ln, extent,
        SCALE, CAUSAL, ATTN_MUL, PAD_MUL, B, J,
    )  # fmt: skip
    top = tl.max(z, 1)
    total = tl.sum(tl.exp(z - finite(top)[:, None]), 1)
    far = count.to(tl.int64)
    for start in range(J, far, J):
        z = scores(
            x + start * (B * B), column + start, rpe, attn, pad, rel, row, query, (far - start).to(tl.int32),
            rm, rn, am, an, pn, lm, ln, extent, SCALE, CAUSAL, ATTN_MUL, PAD_MUL, B, J,
        )  # fmt: skip
        higher = tl.maximum(top, tl.max(z, 1))
        shift = finite(higher)
        total = total * tl.exp(top - shift) + tl.sum(tl.exp(z - shift[:, None]), 1)
        top = higher
    shift = finite(top)
    if MODE == 2:
        tl.store(lse + row, (tl.log(total) + shift).to(lse.dtype.element_ty))
    else:
        number = normaliser(top, total, MODE)
        for start in range(0, far, J):
            left = (far - start).to(tl.int32)
            z = scores(
                x + start * (B * B), column + start, rpe, attn, pad, rel, row, query, left,
                rm, rn, am, an, pn, lm, ln, extent, SCALE, CAUSAL, ATTN_MUL, PAD_MUL, B, J,
            )  # fmt: skip
            give(y + start * (B * B), z, shift, number, row, left, MODE, B, J)


@triton.jit
def block_softmax_forward(
    x, row_start, order, column, rpe, attn, pad, rel, y,
    items, nnz, lines, rows, heads, extent,
    rz, ri, rh, rm, rn, az, ai, ah, am, an, pz, pi, pn, lz, li, lh, lm, ln,
    MODE: tl.constexpr, SCALE: tl.constexpr, CAUSAL: tl.constexpr, ATTN_MUL: tl.constexpr, PAD_MUL: tl.constexpr,
    B: tl.constexpr, ROWS: tl.constexpr, J: tl.constexpr, LEVELS: tl.constexpr, LOOP: tl.constexpr,
):  # fmt: skip
    """y: values, or (items, lines, B) for logsumexp. LOOP: some line has more than J blocks."""
    line, item, first, count, row = line_of(row_start, order, items, B, ROWS)
    query = line % rows * B + row
    start = (item.to(tl.int64) * nnz + first) * (B * B)
    lse = y + (item.to(tl.int64) * lines + line) * B
    if rpe is not None:
        rpe = plane_of(rpe, item, line, rows, heads, rz, ri, rh)
    if attn is not None:
        attn = plane_of(attn, item, line, rows, heads, az, ai, ah)
    if pad is not None:
        pad = plane_of(pad, item, line, rows, heads, pz, pi, 0)
    if rel is not None:
        rel = plane_of(rel, item, line, rows, heads, lz, li, lh)
    for level in tl.static_range(LEVELS):
        if fits(count, J >> level, level + 1 == LEVELS):
            once(
                x + start, y + start, lse, column + first, rpe, attn, pad, rel, row, query, count,
                rm, rn, am, an, pn, lm, ln, extent, MODE, SCALE, CAUSAL, ATTN_MUL, PAD_MUL, B, J >> level,
            )  # fmt: skip
    if LOOP and count > J:
        in_steps(
            x + start, y + start, lse, column + first, rpe, attn, pad, rel, row, query, count,
            rm, rn, am, an, pn, lm, ln, extent, MODE, SCALE, CAUSAL, ATTN_MUL, PAD_MUL, B, J,
        )  # fmt: skip


@triton.jit
def part(y, g, row, left, MODE: tl.constexpr, B: tl.constexpr, J: tl.constexpr):
    """The output and the upstream gradient of a tile; the latter 0 for what takes no part."""
    use = inside(row, left, B, J)
    if MODE == 0:
        out = widen(tl.load(y + places(row, B, J), use, other=0.0))
        taken = out != 0
    else:
        out = widen(tl.load(y + places(row, B, J), use, other=float("-inf")))
        taken = out != float("-inf")
    up = widen(tl.load(g + places(row, B, J), use, other=0.0)).to(out.dtype)
    return out, tl.where(taken, up, 0.0)


@triton.jit
def share(out, up, MODE: tl.constexpr):
    """What a row's gradient needs the sum of."""
    if MODE == 0:
        return tl.sum(out * up, 1)
    else:
        return tl.sum(up, 1)


@triton.jit
def slope(dx, out, up, total, row, left, MODE: tl.constexpr, FACTOR: tl.constexpr, B: tl.constexpr, J: tl.constexpr):
    """Store the gradient of a tile."""
    if MODE == 0:
        value = out * (up - total[:, None])
    else:
        value = up - tl.exp(out) * total[:, None]
    value = value * FACTOR
    tl.store(dx + places(row, B, J), value.to(dx.dtype.element_ty), inside(row, left, B, J))


@triton.jit
def block_softmax_backward(
    y, g, row_start, order, dx,
    items, nnz,
    MODE: tl.constexpr, FACTOR: tl.constexpr,
    B: tl.constexpr, ROWS: tl.constexpr, J: tl.constexpr, LEVELS: tl.constexpr, LOOP: tl.constexpr,
):  # fmt: skip
    """dx from the output y of softmax or log-softmax and its upstream gradient g, times FACTOR."""
    _, item, first, count, row = line_of(row_start, order, items, B, ROWS)
    start = (item.to(tl.int64) * nnz + first) * (B * B)
    for level in tl.static_range(LEVELS):
        if fits(count, J >> level, level + 1 == LEVELS):
            out, up = part(y + start, g + start, row, count, MODE, B, J >> level)
            slope(dx + start, out, up, share(out, up, MODE), row, count, MODE, FACTOR, B, J >> level)
    if LOOP and count > J:
        out, up = part(y + start, g + start, row, count, MODE, B, J)
        total = share(out, up, MODE)
        far = count.to(tl.int64)
        for step in range(J, far, J):
            at = start + step * (B * B)
            out, up = part(y + at, g + at, row, (far - step).to(tl.int32), MODE, B, J)
            total += share(out, up, MODE)
        for step in range(0, far, J):
            left = (far - step).to(tl.int32)
            at = start + step * (B * B)
            out, up = part(y + at, g + at, row, left, MODE, B, J)
            slope(dx + at, out, up, total, row, left, MODE, FACTOR, B, J)


@triton.jit
def block_logsumexp_backward(
    x, row_start, order, column, rpe, attn, pad, rel, y, g, dx,
    items, nnz, lines, rows, heads, extent,
    rz, ri, rh, rm, rn, az, ai, ah, am, an, pz, pi, pn, lz, li, lh, lm, ln,
    SCALE: tl.constexpr, FACTOR: tl.constexpr, CAUSAL: tl.constexpr, ATTN_MUL: tl.constexpr, PAD_MUL: tl.constexpr,
    B: tl.constexpr, ROWS: tl.constexpr, J: tl.constexpr,
):  # fmt: skip
    """dx = softmax times the row's upstream gradient, times FACTOR. y, g: (items, lines, B)."""
    line, item, first, count, row = line_of(row_start, order, items, B, ROWS)
    query = line % rows * B + row
    start = (item.to(tl.int64) * nnz + first) * (B * B)
    at_row = (item.to(tl.int64) * lines + line) * B + row
    lse = widen(tl.load(y + at_row))
    up = widen(tl.load(g + at_row)).to(lse.dtype)
    up = tl.where(lse == float("-inf"), 0.0, up) * FACTOR
    if rpe is not None:
        rpe = plane_of(rpe, item, line, rows, heads, rz, ri, rh)
    if attn is not None:
        attn = plane_of(attn, item, line, rows, heads, az, ai, ah)
    if pad is not None:
        pad = plane_of(pad, item, line, rows, heads, pz, pi, 0)
    if rel is not None:
        rel = plane_of(rel, item, line, rows, heads, lz, li, lh)
    far = count.to(tl.int64)
    for step in range(0, far, J):
        left = (far - step).to(tl.int32)
        at = start + step * (B * B)
        z = scores(
            x + at, column + first + step, rpe, attn, pad, rel, row, query, left,
            rm, rn, am, an, pn, lm, ln, extent, SCALE, CAUSAL, ATTN_MUL, PAD_MUL, B, J,
        )  # fmt: skip
        value = tl.exp(z - finite(lse)[:, None]) * up[:, None]
        tl.store(dx + at + places(row, B, J), value.to(dx.dtype.element_ty), inside(row, left, B, J))
