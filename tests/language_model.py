"""A tiny language model in plain JAX: embedding, one attention block, tied head; trained by optax's adamw."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

VOCABULARY, WIDTH, LENGTH = 61, 16, 24


def start(seed=0):
    """Parameters."""
    keys = jax.random.split(jax.random.key(seed), 6)
    shapes = {"embed": (VOCABULARY, WIDTH), "place": (LENGTH, WIDTH), "qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH)}
    shapes |= {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    return {name: jax.random.normal(k, s) * 0.2 for k, (name, s) in zip(keys, shapes.items())}


def normed(x):
    return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6)


def hidden(params, tokens, softmax):
    """(batch, length, width) before the head; ``softmax(scores)`` is causal attention's."""
    x = params["embed"][tokens] + params["place"][: tokens.shape[1]]
    q, k, v = jnp.split(normed(x) @ params["qkv"], 3, -1)
    x = x + softmax(q @ k.swapaxes(-1, -2) / WIDTH**0.5) @ v @ params["out"]
    return normed(x + jax.nn.gelu(normed(x) @ params["up"]) @ params["down"])


def causal(scores):
    """JAX's own softmax of what comes before."""
    return jax.nn.softmax(scores, where=jnp.tri(*scores.shape[-2:], dtype=bool))


def by_optax(params, tokens):
    """Mean loss of the next token, every seventh left out."""
    logits = hidden(params, tokens[:, :-1], causal) @ params["embed"].T
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
    return losses.mean(where=jnp.arange(tokens.shape[1] - 1) % 7 != 0)


def targets(tokens):
    return jnp.where(jnp.arange(tokens.shape[1] - 1) % 7 != 0, tokens[:, 1:], -100)


def text(seed=1, batch=8):
    """Lines that a model can learn: arithmetic in the ring of the vocabulary."""
    generator = np.random.default_rng(seed)
    first, step = generator.integers(0, VOCABULARY, (2, batch, 1))
    return jnp.asarray((first + (step % 5 + 1) * np.arange(LENGTH + 1)) % VOCABULARY, jnp.int32)


@functools.cache
def train(loss, steps):
    """Losses of each step."""
    optimiser = optax.adamw(3e-2)
    params, tokens = start(), text()
    state = optimiser.init(params)

    @jax.jit
    def step(params, state):
        value, grads = jax.value_and_grad(loss)(params, tokens)
        updates, state = optimiser.update(grads, state, params)
        return value, optax.apply_updates(params, updates), state

    losses = []
    for _ in range(steps):
        value, params, state = step(params, state)
        losses.append(value)
    return np.asarray(losses)
