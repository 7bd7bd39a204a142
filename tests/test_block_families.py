"""DeepSpeed's layout families, by their definitions, and the module that it puts them into."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from onelaunch import sparse
from onelaunch.errors import OptionError
from onelaunch.sparse import BlockLayout


def drawn(layout, head=0):
    """A head as strings."""
    return ["".join(".#"[int(b)] for b in row) for row in layout.mask[head]]


def test_fixed():
    """As DeepSpeed 0.14 draws it: windows of 4, the last block of each seen by all, a short window at the end."""
    layout = sparse.fixed(2, 7 * 16, 16)
    assert layout.heads == 2 and (layout.mask[0] == layout.mask[1]).all()
    assert drawn(layout) == ["####..#"] * 4 + ["...####"] * 3
    one_way = sparse.fixed(1, 6 * 16, 16, num_local_blocks=3, attention="unidirectional")
    assert drawn(one_way) == ["#.....", "##....", "###...", "..##..", "..###.", "..####"]
    turns = sparse.fixed(
        2, 4 * 16, 16, different_layout_per_head=True, num_local_blocks=2, num_different_global_patterns=2
    )
    assert drawn(turns, 0) == ["##.#", "##.#", ".###", ".###"] and drawn(turns, 1) == ["###.", "###.", "#.##", "#.##"]
    wide = sparse.fixed(1, 4 * 16, 16, num_local_blocks=2, horizontal_global_attention=True)
    assert drawn(wide) == ["##.#", "####", ".###", "####"]


def test_variable():
    layout = sparse.variable(1, 6 * 16, 16, local_window_blocks=[1, 2], global_block_indices=[5])
    assert drawn(layout) == ["#....#", ".##..#", ".##..#", "...###", "...###", ".....#"]
    one_way = sparse.variable(
        1, 4 * 16, 16, local_window_blocks=[2], global_block_indices=[1], attention="unidirectional"
    )
    assert drawn(one_way) == ["#...", "##..", ".##.", ".###"]
    spans = sparse.variable(
        1, 4 * 16, 16, local_window_blocks=[1], global_block_indices=[1], global_block_end_indices=[3],
        horizontal_global_attention=True,
    )  # fmt: skip
    assert drawn(spans) == ["###.", "####", "####", ".###"]
    random = sparse.variable(
        3, 16 * 16, 16, True, num_random_blocks=3, local_window_blocks=[1], global_block_indices=[]
    )
    assert (random.mask.sum(-1) >= 3).all() and (random.mask[0] != random.mask[1]).any()


def test_big_bird():
    layout = sparse.big_bird(1, 5 * 16, 16, num_random_blocks=0)
    assert drawn(layout) == ["#####", "###..", "####.", "#.###", "#..##"]
    one_way = sparse.big_bird(4, 12 * 16, 16, True, num_random_blocks=2, attention="unidirectional")
    assert not np.triu(one_way.mask, 1).any() and (one_way.mask[:, 6:].sum(-1) >= 3).all()
    assert one_way == sparse.big_bird(4, 12 * 16, 16, True, num_random_blocks=2, attention="unidirectional")


def test_longformer():
    layout = sparse.longformer(1, 5 * 16, 16, global_block_indices=[2])
    assert drawn(layout) == ["###..", "###..", "#####", "..###", "..###"]
    one_way = sparse.longformer(1, 5 * 16, 16, global_block_indices=[2], attention="unidirectional")
    assert (one_way.mask == np.tril(layout.mask)).all()


def test_wrong_parameters():
    for wrong in (
        {"num_local_blocks": 4, "num_global_blocks": 3},
        {"num_different_global_patterns": 2},
        {"num_different_global_patterns": 5, "different_layout_per_head": True},
        {"attention": "sideways"},
        {"attention": "unidirectional", "horizontal_global_attention": True},
    ):
        with pytest.raises(OptionError):
            sparse.fixed(1, 64, 16, **wrong)
    for wrong in ({"local_window_blocks": []}, {"global_block_end_indices": [0]}, {"num_random_blocks": 9}):
        with pytest.raises(OptionError):
            sparse.variable(1, 64, 16, **wrong)
    with pytest.raises(OptionError, match="num_sliding_window_blocks is 9"):
        sparse.big_bird(1, 64, 16, num_sliding_window_blocks=9)
    with pytest.raises(ValueError, match="multiple of the block"):
        sparse.longformer(1, 65, 16)


@pytest.mark.torch
def test_module():
    torch = pytest.importorskip("torch")
    bs = pytest.importorskip("onelaunch.torch.block_sparse")
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 64, 8, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3))
    rpe = torch.randn(1, 3, 64, 64, generator=generator, dtype=torch.float64)
    padding = torch.where(torch.rand(2, 1, 1, 64, generator=generator) < 0.2, -1e4, 0.0).double()
    mask = torch.rand(64, 64, generator=generator) < 0.7
    layout = sparse.fixed(3, 64, 16, num_local_blocks=2)

    def config():
        """An object as DeepSpeed's configurations."""

    config.block, config.make_layout = 16, lambda length: sparse.fixed(3, length, 16, num_local_blocks=2).mask
    inside = torch.from_numpy(np.kron(layout.mask, np.ones((16, 16))).astype(bool)) & mask
    z = torch.where(inside, q @ k.mT * 8**-0.5 + rpe + padding, -torch.inf)
    want = torch.softmax(z, -1).nan_to_num() @ v
    up = torch.randn(want.shape, generator=generator, dtype=torch.float64)
    want_gradients = torch.autograd.grad(want, [q, k, v], up)
    longer = sparse.fixed(3, 128, 16, num_local_blocks=2)
    sources = (layout, BlockLayout(longer.mask, 16), functools.partial(sparse.fixed, 3, num_local_blocks=2), config)
    for number, source in enumerate(sources):
        module = bs.SparseSelfAttention(source, fused=number % 2 == 0)
        found = module(q, k.mT if number else k, v, rpe, padding, mask.double())
        torch.testing.assert_close(found, want)
        for a, b in zip(torch.autograd.grad(found, [q, k, v], up), want_gradients):
            torch.testing.assert_close(a, b)
    with pytest.raises(ValueError, match="one shape"):
        module(q, k[:, :, :32], v)
    with pytest.raises(ValueError, match="multiple of the block"):
        bs.SparseSelfAttention(layout)(q[:, :, :63], k[:, :, :63], v[:, :, :63])
    with pytest.raises(ValueError, match="blocks of"):
        bs.SparseSelfAttention(layout.crop(2))(q, k, v)
    with pytest.raises(TypeError, match="BlockLayout"):
        bs.SparseSelfAttention(lambda length: 3)(q, k, v)
