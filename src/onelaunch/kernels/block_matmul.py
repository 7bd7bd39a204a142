"""Products with a block-sparse operand (dsd) or result (sdd); a dense one times a sparse one is dsd transposed.

Sparse values are (batch, blocks, BLOCK, BLOCK), the blocks of a head's rows one after another; ``lines`` and ``where``
are the columns and numbers of a row's blocks, or the rows and numbers of a column's where the operand is transposed.
Sums are f32 (f64 for f64), every offset that can be large has 64 bits, and no order of addition depends on timing.
"""

import triton
import triton.language as tl

from onelaunch.kernels.blocks import entries, entry_at, inner, live, steps
from onelaunch.kernels.rows import widen


@triton.jit
def banded(index, count, tiles, BAND: tl.constexpr):
    """Line and tile of a program: BAND tiles of every line come before the next BAND, which keeps them in cache."""
    band = index // (count * BAND)
    wide = tl.minimum(BAND, tiles - band * BAND)
    rest = index % (count * BAND)
    return rest // wide, band * BAND + rest % wide


@triton.jit
def block_dsd(
    values, dense, work, lines, where, out, partial,
    count, tiles, rows, columns, blocks, batch,
    dz, dh, dk, dn, oz, oh, om, on,
    BLOCK: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, BAND: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """out[line of blocks, WIDTH columns] = its blocks times rows of ``dense``.

    work: i32 (count, 4): flat line, first and end of its entries, and the slot of ``partial`` (−1: out itself) that
    takes the sum of a line cut in pieces. where: None if the operand is not transposed.
    """
    index = tl.program_id(0)
    z = (index // (count * tiles)).to(tl.int64)
    item, tile = banded(index % (count * tiles), count, tiles, BAND)
    flat = tl.load(work + item * 4)
    first = tl.load(work + item * 4 + 1)
    stop = tl.load(work + item * 4 + 2)
    head = (flat // rows).to(tl.int64)
    n = tile * WIDTH + tl.arange(0, WIDTH)
    i = tl.arange(0, BLOCK)
    k = tl.arange(0, DEPTH)
    if where is None:
        a = (
            values
            + z * blocks * BLOCK * BLOCK
            + (i * BLOCK)[:, None]
            + (k // BLOCK * BLOCK * BLOCK + k % BLOCK)[None, :]
        )
    else:
        a = values + z * blocks * BLOCK * BLOCK + i[:, None] + (k % BLOCK * BLOCK)[None, :]
    b = dense + z * dz + head * dh + (k % BLOCK).to(tl.int64)[:, None] * dk + n.to(tl.int64)[None, :] * dn
    total = widen(tl.zeros((BLOCK, WIDTH), dense.dtype.element_ty))
    line = entries(lines, first, stop, BLOCK, DEPTH)
    if where is not None:
        block = entries(where, first, stop, BLOCK, DEPTH)
    for step in range(0, steps(first, stop, BLOCK, DEPTH)):
        at = entry_at(first, step, BLOCK, DEPTH)
        sub = inner(step, BLOCK, DEPTH)
        row = line.to(tl.int64) * BLOCK + sub
        if where is None:
            own = at.to(tl.int64) * BLOCK * BLOCK + sub
        else:
            own = block.to(tl.int64) * BLOCK * BLOCK + sub * BLOCK
        if BLOCK >= DEPTH:
            x = tl.load(a + own)
            if EVEN:
                y = tl.load(b + row * dk)
            else:
                y = tl.load(b + row * dk, (n < columns)[None, :], other=0.0)
        else:
            use = live(at, stop, BLOCK, DEPTH)
            if where is None:
                x = tl.load(a + own, use[None, :], other=0.0)
            else:
                x = tl.load(a + own[None, :], use[None, :], other=0.0)
            y = tl.load(b + row[:, None] * dk, use[:, None] & (n < columns)[None, :], other=0.0)
        following = entry_at(first, step + 1, BLOCK, DEPTH)
        line = entries(lines, following, stop, BLOCK, DEPTH)
        if where is not None:
            block = entries(where, following, stop, BLOCK, DEPTH)
        total = tl.dot(x, y, total, input_precision=PRECISION, out_dtype=total.dtype)
    slot = tl.load(work + item * 4 + 3)
    if slot < 0:
        m = (flat % rows).to(tl.int64) * BLOCK + i
        to = out + z * oz + head * oh + m[:, None] * om + n.to(tl.int64)[None, :] * on
        tl.store(to, total.to(out.dtype.element_ty), (n < columns)[None, :])
    elif partial is not None:
        at = (slot * batch + z) * BLOCK + i
        tl.store(partial + at[:, None] * columns + n[None, :], total, (n < columns)[None, :])


@triton.jit
def block_gather(
    partial, cut, before, out, tiles, rows, columns, batch, oz, oh, om, on, BLOCK: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """out[line] = the sum of its pieces, in order; other lines stay as they are in ``before``, which is out itself.

    cut: i32 (lines cut, 3): flat line, first and end of its slots.
    """
    index = tl.program_id(0)
    item = index // (tiles * batch)
    z = (index // tiles % batch).to(tl.int64)
    flat = tl.load(cut + item * 3)
    n = index % tiles * WIDTH + tl.arange(0, WIDTH)
    i = tl.arange(0, BLOCK)
    inside = (n < columns)[None, :]
    total = tl.zeros((BLOCK, WIDTH), partial.dtype.element_ty)
    for slot in range(tl.load(cut + item * 3 + 1), tl.load(cut + item * 3 + 2)):
        at = (slot * batch + z) * BLOCK + i
        total += tl.load(partial + at[:, None] * columns + n[None, :], inside, other=0.0)
    m = (flat % rows).to(tl.int64) * BLOCK + i
    to = out + z * oz + (flat // rows).to(tl.int64) * oh + m[:, None] * om + n.to(tl.int64)[None, :] * on
    tl.store(to, total.to(out.dtype.element_ty), inside)


@triton.jit
def block_sdd(
    x, y, work, lines, values,
    count, depth, rows, blocks,
    xz, xh, xm, xk, yz, yh, yk, yn,
    BLOCK: tl.constexpr, COVER: tl.constexpr, DEPTH: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """values of up to COVER blocks of a row = rows of x times columns of y.

    work: i32 (count, 3): flat row, first and end of its entries.
    """
    index = tl.program_id(0)
    z = (index // count).to(tl.int64)
    item = index % count
    flat = tl.load(work + item * 3)
    first = tl.load(work + item * 3 + 1)
    stop = tl.load(work + item * 3 + 2)
    head = (flat // rows).to(tl.int64)
    i = tl.arange(0, BLOCK)
    k = tl.arange(0, DEPTH)
    c = tl.arange(0, COVER * BLOCK)
    entry = first + c // BLOCK
    column = tl.load(lines + entry, entry < stop, other=0) * BLOCK + c % BLOCK
    column = tl.max_contiguous(tl.multiple_of(column, BLOCK), BLOCK).to(tl.int64)
    m = (flat % rows).to(tl.int64) * BLOCK + i
    a = x + z * xz + head * xh + m[:, None] * xm + k.to(tl.int64)[None, :] * xk
    b = y + z * yz + head * yh + k.to(tl.int64)[:, None] * yk + column[None, :] * yn
    total = widen(tl.zeros((BLOCK, COVER * BLOCK), x.dtype.element_ty))
    for start in range(0, depth, DEPTH):
        if EVEN:
            u = tl.load(a)
            v = tl.load(b)
        else:
            u = tl.load(a, (start + k < depth)[None, :], other=0.0)
            v = tl.load(b, (start + k < depth)[:, None], other=0.0)
        a += DEPTH * xk
        b += DEPTH * yk
        total = tl.dot(u, v, total, input_precision=PRECISION, out_dtype=total.dtype)
    own = (z * blocks + entry) * BLOCK * BLOCK + c % BLOCK
    to = values + own[None, :] + (i * BLOCK)[:, None]
    tl.store(to, total.to(values.dtype.element_ty), (entry < stop)[None, :])
