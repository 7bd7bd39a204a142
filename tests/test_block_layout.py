"""Block layouts: what they accept, their tables, rules, conversion of values, identity."""

from __future__ import annotations

import pickle

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelaunch import sparse
from onelaunch.errors import OptionError
from onelaunch.sparse import BlockLayout


def drawn(*shape, density=0.4, seed=0, block=16):
    return BlockLayout(np.random.default_rng(seed).random(shape) < density, block)


def test_leading_axes_broadcast():
    plain = BlockLayout(np.eye(3), 16)
    assert (plain.heads, plain.batch, plain.shape) == (1, None, (1, 48, 48))
    assert plain.expand(4).shape == (4, 48, 48)
    assert BlockLayout(np.eye(3), 16, heads=4) == plain.expand(4)
    assert BlockLayout(np.eye(3)[None, None], 32, heads=2, batch=5).batch is None
    apart = BlockLayout(np.stack([np.eye(3), np.ones((3, 3))])[:, None], 16, heads=2)
    assert (apart.batch, apart.planes, apart.nnz) == (2, 4, 24)


def test_37_other_blocks_and_masks_are_refused():
    """triton #98: a block below 16 was an IndexError."""
    for block in (8, 48, 256, 0, -16):
        with pytest.raises(OptionError, match="16, 32, 64, 128"):
            BlockLayout(np.eye(3), block)
    with pytest.raises(TypeError, match="0 and 1"):
        BlockLayout(np.full((3, 3), 2), 16)
    for shape in ((3,), (1, 1, 1, 3, 3), (0, 3)):
        with pytest.raises(ValueError, match="block mask is"):
            BlockLayout(np.ones(shape), 16)
    with pytest.raises(ValueError, match="does not broadcast"):
        BlockLayout(np.ones((3, 4, 4)), 16, heads=2)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 5), st.floats(0, 1), st.integers(0, 99))
def test_37_tables(planes, rows, columns, density, seed):
    """triton #360: counts of the tables agree with the mask, empty lines included."""
    layout = drawn(planes, rows, columns, density=density, seed=seed)
    t, mask = layout.tables, layout.planes_mask
    assert all(a.dtype == np.int32 and not a.flags.writeable for a in t.arrays().values())
    assert [tuple(b) for b in zip(t.plane, t.row, t.column)] == [tuple(i) for i in np.argwhere(mask)]
    for line in range(planes * rows):
        blocks = range(t.row_start[line], t.row_start[line + 1])
        assert t.column[blocks].tolist() == np.flatnonzero(mask[line // rows, line % rows]).tolist()
    for line in range(planes * columns):
        blocks = t.column_block[t.column_start[line] : t.column_start[line + 1]]
        assert t.row[blocks].tolist() == np.flatnonzero(mask[line // columns, :, line % columns]).tolist()
    assert (t.column_row == t.row[t.column_block]).all()
    for order, counts in ((t.row_order, mask.sum(2)), (t.column_order, mask.sum(1))):
        assert sorted(order) == list(range(counts.size))
        assert (np.diff(counts.reshape(-1)[order]) <= 0).all()
    assert layout.longest_row == mask.sum(2).max() and layout.longest_column == mask.sum(1).max()


def test_transpose():
    layout = drawn(2, 3, 5)
    x = np.random.default_rng(1).normal(size=(2, *layout.shape))
    values = layout.from_dense(x)[:, layout.tables.column_block].swapaxes(-1, -2)
    assert (values == layout.transpose.from_dense(x.swapaxes(-1, -2))).all()


@pytest.mark.parametrize("layout", [drawn(2, 3, 5), drawn(2, 2, 3, 3), BlockLayout(np.zeros((2, 2)), 16)], ids=str)
@pytest.mark.parametrize("framework", ["numpy", "jax", pytest.param("torch", marks=pytest.mark.torch)])
def test_dense_both_ways(layout, framework):
    convert = {"numpy": np.asarray, "jax": jnp.asarray}.get(framework)
    if convert is None:
        convert = pytest.importorskip("torch").tensor
    x = np.random.default_rng(0).normal(size=(3, *layout.shape)).astype(np.float32)
    inside = np.kron(layout.mask, np.ones((16, 16))).astype(bool)
    values = layout.from_dense(convert(x))
    assert type(values) is type(convert(x)) and tuple(values.shape) == (3, layout.nnz, 16, 16)
    dense = layout.to_dense(values, fill=-1.0)
    assert dense.dtype == values.dtype
    np.testing.assert_array_equal(np.asarray(dense), np.where(inside, x, -1.0))
    with pytest.raises(ValueError, match="this layout takes"):
        layout.from_dense(convert(x[..., :-1]))
    with pytest.raises(ValueError, match="values of shape"):
        layout.to_dense(convert(np.zeros((layout.nnz + 1, 16, 16))))


def test_identity(tmp_path):
    layout = drawn(2, 3, 5, block=64)
    same = BlockLayout(layout.mask.copy(), 64)
    assert layout == same and hash(layout) == hash(same) and len({layout, same}) == 1
    assert layout != BlockLayout(layout.mask, 32) and layout != layout.transpose and layout != 3
    assert pickle.loads(pickle.dumps(layout)) == layout
    layout.save(tmp_path / "layout.npz")
    assert BlockLayout.load(tmp_path / "layout.npz") == layout
    for data in (b"", b"PK", layout.to_bytes()[:50]):
        with pytest.raises(ValueError, match="no block layout"):
            BlockLayout.from_bytes(data)
    with pytest.raises(ValueError, match="read-only"):
        layout.mask[0] = True


def test_found_by_key_as_long_as_an_equal_one_lives():
    first = drawn(2, 3, 5, seed=77)
    second, key = BlockLayout(first.mask, 16), first.key
    assert second.kept is first.kept
    del first
    assert BlockLayout.find(key) == second
    del second
    with pytest.raises(KeyError):
        BlockLayout.find(key)


def test_rules():
    n = 6
    row, column = np.ogrid[:n, :n]
    assert (sparse.causal(n, block=16).mask[0] == (column <= row)).all()
    assert sparse.dense(2, 3, block=16, heads=2).nnz == 12
    window = sparse.sliding_window(n, block=16, before=2, after=1)
    assert (window.mask[0] == ((row - column <= 2) & (column - row <= 1))).all()
    assert sparse.dilated(n, block=16, reach=4, step=2).mask[0, 5].tolist() == [False, True, False, True, False, True]
    whole = sparse.global_tokens(n, block=16, indices=[0, 9])
    assert whole.nnz == 2 * n - 1
    assert ((window | whole).mask[0] == (window.mask[0] | whole.mask[0])).all()
    assert (window & sparse.causal(n, block=16, heads=3)).heads == 3
    with pytest.raises(ValueError, match="differ"):
        _ = window | sparse.causal(n, block=32)
    drawn = sparse.random(40, block=16, density=0.2, heads=4, seed=1)
    assert drawn.mask[:, range(40), range(40)].all() and abs(drawn.density - 0.22) < 0.03
    assert drawn == sparse.random(40, block=16, density=0.2, heads=4, seed=1)
    with pytest.raises(ValueError, match="between 0 and 1"):
        sparse.random(4, block=16, density=2)


def test_rules_from_functions():
    layout = sparse.from_function(lambda h, q, k: (q - k) % (h + 1) == 0, 4, 5, block=16, heads=2)
    one_by_one = sparse.from_function(lambda h, q, k: q == k or (q - k) % (h + 1) == 0, 4, 5, block=16, heads=2)
    assert layout == one_by_one
    assert layout.mask[0].all() and layout.mask[1, 0].tolist() == [True, False, True, False, True]
    assert sparse.from_function(lambda h, q, k: True, 2, block=16).nnz == 4
    causal = sparse.from_mask_mod(lambda b, h, q, k: q >= k, 64, block=16)
    assert causal == sparse.causal(4, block=16)
    apart = sparse.from_mask_mod(lambda b, h, q, k: (q - k >= 0) & (q - k <= 17 * b), 64, block=16, heads=2, batch=2)
    assert apart.batch == 2 and apart.mask[1, 0, 3].tolist() == [False, True, True, True]
    mask = np.zeros((32, 64), bool)
    mask[17, 63] = True
    assert np.argwhere(sparse.from_elements(mask, 16).mask[0]).tolist() == [[1, 3]]
    with pytest.raises(ValueError, match="multiples of the block"):
        sparse.from_elements(mask[:30], 16)


@pytest.mark.torch
def test_block_mask_of_flex_attention():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    mask = flex.create_block_mask(lambda b, h, q, k: q - k >= 20 * h, 1, 2, 128, 64, device="cpu", BLOCK_SIZE=16)
    layout = sparse.from_block_mask(mask)
    assert layout == sparse.from_mask_mod(lambda b, h, q, k: q - k >= 20 * h, 128, 64, block=16, heads=2)
    oblong = flex.create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 128, 128, device="cpu", BLOCK_SIZE=(16, 32))
    with pytest.raises(ValueError, match="square"):
        sparse.from_block_mask(oblong)


def test_plot():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    figure = drawn(3, 4, 4).plot()
    assert len(figure.axes) == 3
    pyplot.close(figure)
