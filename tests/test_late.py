"""Ensembles combined at the end: members over programs, the rest in the last of them, one launch."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onelaunch import trace
from onelaunch.launch import interpreter
from onelaunch.pipeline import compile_graph
from onelaunch.rewrite import rewrite
from onelaunch.schedule.plan import Limits

MEMBERS = 70


def chain(key, x):
    def step(_, carry):
        key, x = carry
        key, draw = jax.random.split(key)
        return key, 0.9 * x + jax.random.normal(draw)

    return jax.lax.fori_loop(0, 4, step, (key, x))[1]


def ensemble(key, x):
    return jax.vmap(chain)(jax.random.split(key, MEMBERS), x)


def mean_and_members(key, x):
    y = ensemble(key, x)
    return y, y.mean(), (y - y.mean()) ** 2


def sorted_and_scanned(key, x):
    y = ensemble(key, x)
    return jnp.sort(y)[:3], jnp.cumsum(y), y[3], y.reshape(7, 10).sum(1)


def loop_over_members(key, x):
    y = ensemble(key, x)
    return jax.lax.fori_loop(0, 3, lambda _, s: s + jnp.tanh(y * s).sum(), 0.1)


def of_a_parameter(key, x):
    return ensemble(key, x) * 2, x.sum(), jnp.flip(x) + ensemble(key, x).max()


@pytest.mark.parametrize("fn", [mean_and_members, sorted_and_scanned, loop_over_members, of_a_parameter])
@pytest.mark.parametrize("lanes", [16, 32])
def test_members_spread_and_the_last_program_combines(fn, lanes):
    args = (jax.random.PRNGKey(1), jnp.arange(float(MEMBERS)))
    graph = rewrite(trace.to_graph(jax.make_jaxpr(fn)(*args), fn.__name__))
    plan, kernel = compile_graph(graph, dataclasses.replace(Limits(), lanes=lanes))
    assert plan.late and plan.batch == MEMBERS and kernel.counter
    inputs = [*map(np.asarray, args), *(c for _, c in graph.consts)]
    want = jax.tree.leaves(jax.jit(fn)(*args))
    for order in ("forward", "shuffled"):
        for got, expected in zip(interpreter.run(kernel, inputs, order=order), want, strict=True):
            np.testing.assert_allclose(got, np.asarray(expected), rtol=2e-5, atol=2e-6)


def test_one_member_a_program():
    args = (jax.random.PRNGKey(1), jnp.arange(float(MEMBERS)))
    graph = rewrite(trace.to_graph(jax.make_jaxpr(mean_and_members)(*args), "one"))
    plan, kernel = compile_graph(graph, dataclasses.replace(Limits(), lanes=1))
    assert plan.late and kernel.grid == (MEMBERS,)
    got = interpreter.run(kernel, [*map(np.asarray, args), *(c for _, c in graph.consts)])
    np.testing.assert_allclose(got[1], np.asarray(jax.jit(mean_and_members)(*args)[1]), rtol=2e-5)


def test_small_ensembles_stay_in_one_program():
    def fn(key, x):
        return jax.vmap(chain)(jax.random.split(key, 5), x).mean()

    graph = rewrite(trace.to_graph(jax.make_jaxpr(fn)(jax.random.PRNGKey(1), jnp.arange(5.0)), "small"))
    plan, kernel = compile_graph(graph)
    assert not plan.late and kernel.grid == (1,)
