"""Scratch buffers whose uses lie apart share memory, and the values stay right."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from onelaunch import trace
from onelaunch.launch import interpreter
from onelaunch.pipeline import compile_graph
from onelaunch.place import liveness
from onelaunch.rewrite import rewrite
from onelaunch.schedule.plan import Limits

SMALL_TILES = dataclasses.replace(Limits(), tile=16, work=64)


def chained(x):
    """Prefix sums one after the other: each needs the one before only."""
    for _ in range(5):
        x = jnp.cumsum(jnp.sin(x))
    return x


def in_a_loop(x):
    def body(i, x):
        return jnp.flip(jnp.cumsum(jnp.cumsum(jnp.cumsum(jnp.flip(x)) * 0.1) * 0.1)) + i

    return jax.lax.fori_loop(0, 3, body, x)


def scratch(fn, x):
    graph = rewrite(trace.to_graph(jax.make_jaxpr(fn)(x), fn.__name__))
    _, kernel = compile_graph(graph, SMALL_TILES)
    (got,) = interpreter.run(kernel, [np.asarray(x)])
    np.testing.assert_allclose(got, np.asarray(jax.jit(fn)(x)), rtol=2e-5, atol=2e-6)
    return sum(p.nbytes for p in kernel.params if p.role == "scratch")


def test_a_chain_needs_two_buffers(monkeypatch):
    x = jnp.linspace(-1.0, 1.0, 40)
    shared = scratch(chained, x)
    monkeypatch.setattr(liveness, "share", lambda program: None)
    assert shared < scratch(chained, x)
    assert shared <= 2 * x.nbytes


def test_inside_a_loop(monkeypatch):
    x = jnp.linspace(-1.0, 1.0, 40)
    shared = scratch(in_a_loop, x)
    monkeypatch.setattr(liveness, "share", lambda program: None)
    assert shared < scratch(in_a_loop, x)
