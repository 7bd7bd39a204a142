"""Block-sparse products and attention compiled for GPUs: tensor cores, loads in flight, no spilled registers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from onelaunch import build, target
from onelaunch.kernels.attention_calls import Attention
from onelaunch.nn import block_attention, block_matmul
from onelaunch.sparse import random


def product(kind: str, block: int, dtype: Any) -> Any:
    """A kernel of a square product of 4,096."""
    layout = random(4096 // block, block=block, density=0.25)
    struct = jax.ShapeDtypeStruct
    dense, table = struct((1, 1, 4096, 4096), dtype), struct((8,), jnp.int32)
    values = struct((1, layout.nnz, block, block), dtype)
    if kind == "sdd":
        function = block_matmul.Sdd(layout, False, False, "ieee")
        return function.kernel({"x": dense, "y": dense, "work": table, "lines": table}, [values])
    names = ("values", "dense", "work", "lines", *(("where",) if kind == "dsd transposed" else ()))
    given = dict(zip(names, (values, dense, table, table, table)))
    return block_matmul.Dsd(layout, len(names) == 5, False, False, "ieee", names).kernel(given, [dense])


def attention(function: Any, block: int, dim: int, dtype: Any, causal: bool = False) -> Any:
    """A kernel of attention over 4,096 tokens."""
    layout = random(4096 // block, block=block, density=0.25)
    struct = jax.ShapeDtypeStruct
    q, table, numbers = (struct((1, 4, 4096, dim), dtype), struct((8,), jnp.int32), struct((1, 4, 4096), jnp.float32))
    given = {"q": q, "k": q, "v": q}
    if function is not block_attention.Forward:
        given |= {"dout": q, "lse": numbers, "delta": numbers}
    given |= dict.fromkeys(("order", "bounds", "lines"), table)
    results = {"Forward": [q, numbers], "Dq": [q], "Dkv": [q, q]}[function.__name__]
    return function(Attention(dim**-0.5, None, causal), layout, tuple(given)).kernel(given, results)


def check(kernel: Any, arch: str = "90", spilled: int = 0) -> None:
    """Compiles and has what it needs."""
    built = build.compile(kernel, target.Target("cuda", arch))
    ttgir = str(built.asm["ttgir"])
    assert ("warp_group_dot" if arch == "90" else "#ttg.nvidia_mma") in ttgir, "no tensor cores"
    assert ttgir.count("async_copy_global_to_local") >= 4, "loads are not in flight"
    assert built.resources.spilled <= spilled
    assert built.resources.shared <= (227 if arch == "90" else 163) * 1024


@pytest.mark.parametrize(("kind", "block"), [("dsd", 64), ("sdd", 128)])
def test_products(kind: str, block: int) -> None:
    check(product(kind, block, jnp.bfloat16))


def test_attention() -> None:
    check(attention(block_attention.Forward, 128, 64, jnp.bfloat16))


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["80", "90"])
@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("kind", ["sdd", "dsd", "dsd transposed"])
def test_every_product(kind: str, block: int, arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONELAUNCH_TARGET", f"cuda:{arch}")
    check(product(kind, block, jnp.float16), arch)


@pytest.mark.slow
@pytest.mark.parametrize("dim", [64, 96, 128, 256])
@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("name", ["Forward", "Dq", "Dkv"])
def test_every_attention(name: str, block: int, dim: int) -> None:
    check(attention(getattr(block_attention, name), block, dim, jnp.bfloat16), spilled=96)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Forward", "Dq", "Dkv"])
def test_attention_on_sm_80(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONELAUNCH_TARGET", "cuda:80")
    check(attention(getattr(block_attention, name), 128, 128, jnp.float16, causal=True), "80", spilled=2048)
