"""Rows: random numbers, whose bits are exactly JAX's. Arguments are the raw words of keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import threefry_2x32

from rows.row import Row, f32, i32, key, normal, row

KEYS = np.stack([key(1), key(2), key(3)])
R = jax.random


def typed(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn`` of a typed key, from its words."""
    return lambda words, *rest: fn(R.wrap_key_data(words), *rest)


def over_keys(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda words: jax.vmap(fn)(R.wrap_key_data(words))


def draws(shape: tuple[int, ...], dtype: Any = jnp.uint32) -> Callable[..., Any]:
    return typed(lambda k: R.bits(k, shape, dtype))


STATE = np.array([3, 2**31 + 5, 2**32 - 2, 9], np.uint32)
SHAPES = ((), (6,), (7,), (3, 4), (3, 5))


def generator(algorithm: int, shape: tuple[int, ...], dtype: str = "uint32") -> Any:
    return lambda state: lax.rng_bit_generator(state, shape, dtype, algorithm=lax.RandomAlgorithm(algorithm))


def of_kind(kind: str) -> Any:
    """Keys of a kind: made, split, folded, carried by a loop, drawn from one by one and as a batch."""

    def fn(seed: Any) -> Any:
        def step(k: Any, i: Any) -> Any:
            k, sub = R.split(R.fold_in(k, i))
            return k, R.uniform(sub)

        k, xs = lax.scan(step, R.key(seed, impl=kind), jnp.arange(2))
        return R.key_data(k), xs, jax.vmap(lambda k: R.bits(k, (2,)))(R.split(k))

    return fn


def chain(words: Any) -> Any:
    """A key split again and again in a loop."""

    def step(k: Any, _: Any) -> Any:
        k, sub = R.split(k)
        return k, R.normal(sub, (3,))

    k, xs = jax.lax.scan(step, R.wrap_key_data(words), None, length=4)
    return R.key_data(k), xs


ROWS: list[Row] = [
    row("bits_scalar", draws(()), key()),
    row("bits_one", draws((1,)), key(7)),
    row("bits_odd", draws((7,)), key(7)),
    row("bits_matrix", draws((3, 5)), key(2**40 + 3)),
    row("bits_none", draws((0, 2)), key()),
    row("bits_8", draws((5,), jnp.uint8), key(1)),
    row("bits_16", draws((3, 3), jnp.uint16), key(1)),
    row("bits_64", draws((3,), jnp.uint64), key(1), x64=True),
    row("bits_batch", over_keys(lambda k: R.bits(k, (5,))), KEYS),
    row("bits_batch_scalar", over_keys(lambda k: R.bits(k)), KEYS),
    row("bits_raw_key", lambda k: R.bits(k, (4,)), key(5)),
    *(row(f"bits_classic_{n}", draws((n,)), key(3), classic=True) for n in (1, 4, 7)),
    row("bits_classic_8", draws((5,), jnp.uint8), key(3), classic=True),
    row("bits_classic_batch", over_keys(lambda k: R.bits(k, (3,))), KEYS, classic=True),
    row("split_classic", lambda k: R.split(k, 3), key(3), classic=True),
    row("split", lambda k: R.split(k, 5), key(3)),
    row("split_matrix", typed(lambda k: R.key_data(R.split(k, (2, 3)))), key(3)),
    row("split_batch", over_keys(lambda k: R.key_data(R.split(k))), KEYS),
    row("fold_in", lambda k, i: R.fold_in(k, i), key(3), np.int32(17)),
    row("fold_in_batch", lambda k, i: jax.vmap(R.fold_in)(k, i), KEYS, i32(1, 2, -3)),
    row("fold_in_counter", lambda k: jax.vmap(lambda i: R.fold_in(k, i))(jnp.arange(3)), key(1)),
    row("seed", lambda s: R.key_data(R.key(s)), np.int32(-5)),
    row("seed_batch", lambda s: jax.vmap(lambda i: R.key_data(R.key(i)))(s), i32(1, -1)),
    row("seed_wide", lambda s: R.key_data(R.key(s)), np.int64(2**40 + 9), x64=True),
    row("clone", typed(lambda k: R.bits(R.clone(k), (2,))), key(9)),
    row("key_moves", lambda w: R.key_data(jnp.stack([R.wrap_key_data(w)[::2][1], R.wrap_key_data(w)[0]])), KEYS),
    row(
        "key_selected",
        lambda w, p: R.key_data(jnp.where(p, R.wrap_key_data(w)[0], R.wrap_key_data(w)[1])),
        KEYS,
        np.asarray(True),
    ),
    row("key_indexed", lambda w, i: R.bits(R.wrap_key_data(w)[i]), KEYS, np.int32(2)),
    row("key_chain", chain, key(4), ulps=16),
    *(row(f"generator_{alg}_{n}", generator(alg, shape), STATE) for alg in (1, 2) for n, shape in enumerate(SHAPES)),
    *(row(f"generator_{alg}_{t}", generator(alg, (5,), t), STATE) for alg in (0, 1) for t in ("uint8", "uint16")),
    *(row(f"generator_{alg}_wide", generator(alg, (3, 2), "uint64"), STATE, x64=True) for alg in (1, 2)),
    row("generator_wide_state", generator(2, (3,)), STATE.view(np.uint64), x64=True),
    *(row(f"{kind}_key", of_kind(kind), np.uint32(7)) for kind in ("rbg", "unsafe_rbg")),
    row("threefry", lambda k: threefry_2x32(k, jnp.arange(5, dtype=jnp.uint32)), key(4)),
    row("uniform", typed(lambda k: R.uniform(k, (7,), minval=-2, maxval=3)), key(1), floor=1),
    row("uniform_f64", typed(lambda k: R.uniform(k, (5,), jnp.float64)), key(1), x64=True),
    row("uniform_bf16", typed(lambda k: R.uniform(k, (5,), jnp.bfloat16)), key(1)),
    row("normal", typed(lambda k: R.normal(k, (3, 5))), key(1), ulps=16),
    row("normal_f16", typed(lambda k: R.normal(k, (5,), jnp.float16)), key(1)),
    row("normal_batch", over_keys(lambda k: R.normal(k, (2,))), KEYS, ulps=16),
    row("randint", typed(lambda k: R.randint(k, (9,), -5, 17)), key(1)),
    row("randint_byte", typed(lambda k: R.randint(k, (5,), 0, 200, jnp.uint8)), key(1)),
    row("bernoulli", typed(lambda k: R.bernoulli(k, 0.3, (9,))), key(1)),
    row("exponential", typed(lambda k: R.exponential(k, (5,))), key(1), ulps=16),
    row("laplace", typed(lambda k: R.laplace(k, (5,))), key(1), ulps=16),
    row("gumbel", typed(lambda k: R.gumbel(k, (5,))), key(1), ulps=32),
    row("truncated_normal", typed(lambda k: R.truncated_normal(k, -1, 2, (5,))), key(1), ulps=64),
    row("categorical", typed(lambda k, x: R.categorical(k, x)), key(1), normal(4, 5)),
    row("choice", typed(lambda k, x: R.choice(k, x, (4,))), key(1), normal(9)),
    row("choice_weighted", typed(lambda k: R.choice(k, 5, (4,), p=jnp.arange(5.0) / 10)), key(1)),
    row("permutation", typed(lambda k: R.permutation(k, 9)), key(1)),
    row("permutation_rows", typed(lambda k, x: R.permutation(k, x)), key(1), normal(5, 2)),
    row("gamma", typed(lambda k, a: R.gamma(k, a)), key(1), f32(0.3, 1, 2.5, 9), ulps=64),
    row("gamma_scalar", typed(lambda k: R.gamma(k, 2.0, (3,))), key(1), ulps=64),
    row("gamma_batch", lambda w, a: jax.vmap(R.gamma)(R.wrap_key_data(w), a), KEYS, normal(3, 2) ** 2, ulps=64),
    row("loggamma", typed(lambda k, a: R.loggamma(k, a)), key(1), f32(0.3, 2.5), ulps=64),
    row("beta", typed(lambda k: R.beta(k, 2.0, 3.0, (3,))), key(1), ulps=64),
    row("dirichlet", typed(lambda k, a: R.dirichlet(k, a)), key(1), f32(1, 2, 3), ulps=64),
    row("poisson", typed(lambda k, x: R.poisson(k, x)), key(1), f32(0.5, 4, 30)),
    row(
        "multivariate_normal",
        typed(lambda k, x: R.multivariate_normal(k, x, jnp.eye(3) * 2)),
        key(1),
        f32(1, 2, 3),
        ulps=64,
    ),
    row("ball", typed(lambda k: R.ball(k, 3)), key(1), ulps=64),
]
