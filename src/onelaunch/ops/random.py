"""Random numbers: exactly JAX's bits. A typed key is its uint32 words, as a last dim."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core.primitives import random_gamma_p
from jax.extend.random import rbg_prng_impl, threefry_prng_impl, unsafe_rbg_prng_impl

from onelaunch.ir.builder import Builder
from onelaunch.ir.nodes import Value
from onelaunch.ops.table import REFUSED, Params, refuse, retrace, rule
from onelaunch.ops.words import KEY_KINDS

UINT32 = np.dtype("uint32")

#: the functions (seed, split, random_bits, fold_in) behind a typed key, in plain JAX, by its dtype
IMPLS = {"key<fry>": threefry_prng_impl, "key<rbg>": rbg_prng_impl, "key<urbg>": unsafe_rbg_prng_impl}
REFUSED["rng_uniform"] = ("its numbers come from XLA's own stateful generator", "Use jax.random.uniform with a key.")


def key_impl(b: Builder, aval: Any) -> Any:
    """The functions behind keys of an abstract value's kind."""
    if str(aval.dtype) not in IMPLS:
        fix = f"Use a key of one of JAX's kinds: {', '.join(KEY_KINDS.values())}."
        refuse(b, "random", f"keys of kind {aval.dtype} are not JAX's own", fix)
    return IMPLS[str(aval.dtype)]


def over_keys(fun: Callable[..., Any], depth: int) -> Callable[..., Any]:
    """``fun`` of one key (words) over ``depth`` leading dims of keys (and of every other operand)."""
    for _ in range(depth):
        fun = jax.vmap(fun)
    return fun


@rule("random_wrap", "random_unwrap", "random_clone")
def identity(b: Builder, params: Params, x: Value) -> Value:
    """Keys and their words are the same array here."""
    return x


def split_words(words: jax.Array, impl: Any, shape: tuple[int, ...]) -> jax.Array:
    return over_keys(lambda k: impl.split(k, shape), words.ndim - 1)(words)


def bit_words(words: jax.Array, impl: Any, bit_width: int, shape: tuple[int, ...]) -> jax.Array:
    return over_keys(lambda k: impl.random_bits(k, bit_width, shape), words.ndim - 1)(words)


def seed_words(seeds: jax.Array, impl: Any) -> jax.Array:
    return over_keys(impl.seed, seeds.ndim)(seeds)


def fold_words(words: jax.Array, data: jax.Array, impl: Any) -> jax.Array:
    shape = jnp.broadcast_shapes(words.shape[:-1], data.shape)
    words, data = jnp.broadcast_to(words, (*shape, words.shape[-1])), jnp.broadcast_to(data, shape)
    return over_keys(impl.fold_in, len(shape))(words, data)


@rule("random_split")
def random_split(b: Builder, params: Params, keys: Value) -> list[Value]:
    return retrace(b, split_words, keys, impl=key_impl(b, params["_in"][0]), shape=tuple(params["shape"]))


@rule("random_bits")
def random_bits(b: Builder, params: Params, keys: Value) -> list[Value]:
    impl = key_impl(b, params["_in"][0])
    return retrace(b, bit_words, keys, impl=impl, bit_width=params["bit_width"], shape=tuple(params["shape"]))


@rule("random_seed")
def random_seed(b: Builder, params: Params, seeds: Value) -> list[Value]:
    return retrace(b, seed_words, seeds, impl=key_impl(b, params["_out"][0]))


@rule("random_fold_in")
def random_fold_in(b: Builder, params: Params, keys: Value, data: Value) -> list[Value]:
    return retrace(b, fold_words, keys, data, impl=key_impl(b, params["_in"][0]))


def gamma_samples(words: jax.Array, alphas: jax.Array, log_space: bool, kind: str) -> jax.Array:
    """JAX's own sampler for one key and an array of shapes, over the dims of keys; each sample is a lane."""

    def sample(words: jax.Array, alphas: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(words, impl=kind)
        return random_gamma_p.impl(key, alphas, log_space=log_space, use_vmap=True)

    return over_keys(sample, words.ndim - 1)(words, alphas)


@rule("random_gamma")
def random_gamma(b: Builder, params: Params, keys: Value, alphas: Value) -> list[Value]:
    key_impl(b, params["_in"][0])
    kind = KEY_KINDS[str(params["_in"][0].dtype)]
    return retrace(b, gamma_samples, keys, alphas, log_space=params["log_space"], kind=kind)


@rule("iota_2x32_shape")
def iota_2x32_shape(b: Builder, params: Params) -> list[Value]:
    """The high and low words of 0, 1, 2... in row-major order."""
    shape = tuple(params["shape"])
    if math.prod(shape) >= 1 << 32:
        refuse(b, "random_bits", "the array has 2^32 elements or more", "Draw it in parts.")
    parts: list[Value] = []
    stride = 1
    for dim in reversed(range(len(shape))):
        if shape[dim] > 1:
            index = b.iota(shape, dim, UINT32)
            parts.append(index if stride == 1 else b.map("mul", index, b.const(stride, UINT32)))
        stride *= shape[dim]
    zero = b.full(shape, 0, UINT32)
    return [zero, reduce(partial(b.map, "add"), parts) if parts else zero]
