"""What can't be in a kernel stays in XLA, the rest becomes as few kernels as it can; values are those of jax.jit."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import onelaunch
from onelaunch.partition.levels import Node, components, levels, sunk
from onelaunch.primitive import Program

X = jnp.arange(1.0, 5.0) * 0.3


def loop(x: jax.Array, turns: int = 4) -> jax.Array:
    """Work that pays as a kernel."""
    return lax.fori_loop(0, turns, lambda _, c: jnp.sin(c) * 1.5 + jnp.sum(c) * 0.1, x)


def host(x: jax.Array) -> jax.Array:
    """Work that only the host can do."""
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(lambda v: np.cos(np.asarray(v)), shape, x, vmap_method="expand_dims")


def fourier(x: jax.Array) -> jax.Array:
    return jnp.fft.fft(x).real * 0.5


def between(kept: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: loop(kept(loop(x)))


def in_scan(x: jax.Array) -> Any:
    def body(c: jax.Array, i: jax.Array) -> Any:
        c = loop(host(loop(c)) + i)
        return c, c.sum()

    return lax.scan(body, x, jnp.arange(3.0), reverse=True)


def in_while(x: jax.Array) -> Any:
    return lax.while_loop(lambda s: s[0] < jnp.abs(s[1]).max() + 2, lambda s: (s[0] + 1, between(host)(s[1])), (0, x))


def in_test_of_while(x: jax.Array) -> Any:
    return lax.while_loop(lambda s: host(loop(s[1])).sum() > s[0] - 5, lambda s: (s[0] + 1, loop(s[1])), (0, x))


def in_cond(x: jax.Array) -> Any:
    return lax.cond(x[0] > 0.2, between(host), loop, loop(x))


def in_switch(x: jax.Array) -> Any:
    return lax.switch((x[1] * 4).astype(int), [loop, between(fourier), between(host)], x)


@jax.custom_jvp
def ruled(x: jax.Array) -> jax.Array:
    return between(host)(x)


ruled.defjvp(lambda p, t: (ruled(*p), t[0] * loop(p[0])))


def with_key(x: jax.Array) -> Any:
    def body(carry: Any, _: None) -> Any:
        key, c = carry
        key, sub = jax.random.split(key)
        return (key, loop(host(c + jax.random.normal(sub, c.shape)))), jax.random.key_data(sub)

    (key, c), subs = lax.scan(body, (jax.random.key(1), x), None, length=2)
    return jax.random.key_data(key), c, subs


def weak(x: jax.Array) -> Any:
    """Weakly typed carries and results."""
    n, c = lax.while_loop(lambda s: s[0] < 3.0, lambda s: (s[0] + 1.0, between(host)(s[1]) * s[0]), (0.5, x))
    return n, c, lax.cond(x[0] > 9, lambda: 1, lambda: 2)


WEIGHTS = np.random.default_rng(0).normal(size=(256, 256)).astype(np.float32) * 0.05
IMAGE = np.random.default_rng(1).normal(size=(1, 4, 24, 24)).astype(np.float32)


def product(x: jax.Array) -> jax.Array:
    wide = jnp.tile(loop(x), 64).reshape(256, 1) * WEIGHTS
    return loop(jnp.tanh(wide @ WEIGHTS)[:4, 0])


def convolved(x: jax.Array) -> jax.Array:
    image = lax.conv_general_dilated(IMAGE * loop(x).sum(), IMAGE.repeat(4, 0) * 0.1, (1, 1), "SAME")
    return loop(image[0, :, 0, 0])


def decomposed(x: jax.Array) -> jax.Array:
    x = loop(x)
    square = x[:, None] * x + jnp.diag(jnp.arange(1.0, 5.0))
    return loop(jnp.linalg.solve(square, fourier(jnp.linalg.cholesky(square)[-1])))


#: name -> (program, kernels, the primitive kept)
PROGRAMS: dict[str, tuple[Callable[..., Any], int, str]] = {
    "callback between": (between(host), 2, "pure_callback"),
    "fft between": (between(fourier), 2, "fft"),
    "chain of kept": (lambda x: loop(fourier(host(host(loop(x))))), 2, "pure_callback"),
    "chain of kernels": (lambda x: loop(host(loop(host(loop(x))))), 3, "pure_callback"),
    "two beside one another": (lambda x: loop(host(loop(x)) + fourier(loop(x + 1))), 2, "pure_callback"),
    "callback at the end only": (lambda x: (loop(x), host(x)), 1, "pure_callback"),
    "results and arguments": (lambda x, y: (x, y, 2.0, loop(host(loop(y)))), 2, "pure_callback"),
    "little work before a callback": (lambda x: (loop(x), loop(host(x * 2 + 1))), 1, "pure_callback"),
    "nothing worth a kernel": (lambda x: host(x * 2) + 1, 0, "pure_callback"),
    "in a scan": (in_scan, 2, "pure_callback"),
    "in a while": (in_while, 2, "pure_callback"),
    "in the test of a while": (in_test_of_while, 2, "pure_callback"),
    "in a cond": (in_cond, 4, "pure_callback"),
    "in a switch": (in_switch, 5, "fft"),
    "in jit": (lambda x: loop(jax.jit(between(host))(x)), 2, "pure_callback"),
    "in checkpoint": (lambda x: jax.checkpoint(between(host))(x), 2, "pure_callback"),
    "in custom_jvp": (ruled, 2, "pure_callback"),
    "key in a carry": (with_key, 1, "pure_callback"),
    "weak types": (weak, 2, "pure_callback"),
    "large product": (product, 2, "dot_general"),
    "large convolution": (convolved, 2, "conv_general_dilated"),
    "among linear algebra": (decomposed, 2, "fft"),
    "in fuse": (lambda x: loop(onelaunch.fuse(between(host))(x)), 2, "pure_callback"),
}


def args_of(name: str) -> tuple[jax.Array, ...]:
    return (X, X + 1) if name == "results and arguments" else (X,)


def same(got: Any, want: Any) -> None:
    """Structure, types and weak types are equal, values close."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert jax.typeof(x) == jax.typeof(y)
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-5)


@pytest.fixture
def fuse(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    return onelaunch.fuse


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_number_of_kernels(name: str, fuse: Any) -> None:
    fn, kernels, kept = PROGRAMS[name]
    fused = fuse(fn)
    low = fused.lower(*args_of(name))
    assert low.launches == len(low.kernels) == kernels
    assert kept in {r.what for r in low.refusals}
    for refusal in low.refusals:
        assert refusal.where is not None and refusal.where.file == __file__
    same(fused(*args_of(name)), jax.jit(fn)(*args_of(name)))


@pytest.mark.parametrize("name", ["callback between", "in a scan", "in a while", "in a cond", "in a switch"])
def test_under_vmap(name: str, fuse: Any) -> None:
    fn = PROGRAMS[name][0]
    batch = jnp.stack([X, X - 0.5, X * 2])
    same(jax.jit(jax.vmap(fuse(fn)))(batch), jax.jit(jax.vmap(fn))(batch))


@pytest.mark.parametrize("name", ["fft between", "in custom_jvp"])
def test_under_grad(name: str, fuse: Any) -> None:
    fn = PROGRAMS[name][0]
    want = jax.jit(jax.value_and_grad(lambda x: jnp.sum(fn(x))))(X)
    same(jax.value_and_grad(lambda x: jnp.sum(fuse(fn)(x)))(X), want)
    inside = fuse(jax.value_and_grad(lambda x: jnp.sum(fn(x))))
    same(inside(X), want)
    assert inside.lower(X).launches >= 2


# --- effects -----------------------------------------------------------------------------------------------


class Log:
    """What host callbacks were given, in order."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def note(self, tag: int, x: Any) -> None:
        self.seen.append((tag, np.round(np.asarray(x), 4).tolist()))


def noisy(log: Log, ordered: bool) -> Callable[..., Any]:
    def note(tag: int, x: jax.Array) -> None:
        jax.experimental.io_callback(lambda v: log.note(tag, v), None, x, ordered=ordered)

    def body(c: jax.Array, i: jax.Array) -> Any:
        note(2, c.sum())
        c = loop(c)
        note(3, c.max())
        return c, None

    def fn(x: jax.Array) -> Any:
        note(0, x)
        y = loop(x)
        jax.debug.callback(lambda v: log.note(1, v), y, ordered=ordered)
        z = lax.scan(body, loop(y + 1), jnp.arange(3))[0]
        w = lax.cond(z[0] > 0, lambda z: (note(4, z), loop(z))[1], lambda z: (note(5, z), z)[1], z)
        return lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, (note(6, s[1]), loop(s[1]))[1]), (0, w))

    return fn


@pytest.mark.parametrize("ordered", [True, False])
def test_effects_happen_as_often_and_in_the_order_of_jit(ordered: bool, fuse: Any) -> None:
    ours, theirs = Log(), Log()
    got = fuse(noisy(ours, ordered))(X)
    want = jax.jit(noisy(theirs, ordered))(X)
    jax.effects_barrier()
    same(got, want)
    if ordered:
        assert ours.seen == theirs.seen
    assert sorted(map(str, ours.seen)) == sorted(map(str, theirs.seen))
    assert fuse(noisy(ours, ordered)).lower(X).launches >= 3


def test_prints_under_vmap_and_grad(fuse: Any, capfd: pytest.CaptureFixture[str]) -> None:
    def fn(x: jax.Array) -> jax.Array:
        y = loop(x)
        jax.debug.print("sum {:.3f}", jnp.sum(y))
        return jnp.sum(jnp.exp(y))

    batch = jnp.stack([X, X - 0.5])
    for wrap, arg in ((jax.vmap, batch), (jax.grad, X), (lambda f: jax.vmap(jax.grad(f)), batch)):
        same(wrap(fuse(fn))(arg), wrap(jax.jit(fn))(arg))
        jax.effects_barrier()
        printed = capfd.readouterr().out.splitlines()
        half = len(printed) // 2
        assert half and printed[:half] == printed[half:]


def test_error_names_the_place_of_an_effect(fuse: Any) -> None:
    with pytest.raises(onelaunch.FusionError) as caught:
        fuse(noisy(Log(), True), fallback="error")(X)
    error = caught.value
    assert (error.stage, error.what) == ("trace", "io_callback")
    assert error.where is not None and error.where.file == __file__ and error.why and error.fix


# --- the graph ---------------------------------------------------------------------------------------------


def test_the_kernels_are_as_many_as_runs_on_the_longest_path() -> None:
    free, kept = (lambda *w: Node(w, False)), (lambda *w: Node(w, True))
    assert levels([kept(), kept(0), free(1), free()]) == [0, 0, 1, 1]
    assert levels([free(), kept(0), free(1), kept(0), free(3), kept(2, 4), free(5)]) == [1, 1, 2, 1, 2, 2, 3]
    assert levels([free(), free(0), kept(0), free(2, 1)]) == [1, 1, 1, 2]


def test_light_nodes_stand_beside_their_readers() -> None:
    nodes = [Node((), False, light=True), Node((), False), Node((1,), True), Node((0, 2), False)]
    assert sunk(nodes, levels(nodes), frozenset()) == [2, 1, 1, 2]
    assert sunk(nodes, levels(nodes), frozenset([0])) == [1, 1, 1, 2]


@pytest.mark.parametrize("seed", range(50))
def test_random_graphs_of_kernels_run(seed: int) -> None:
    """Every node runs after what it waits for, kernels in the order of their levels."""
    draw = random.Random(seed)
    nodes = [
        Node(
            tuple(sorted(draw.sample(range(at), draw.randint(0, min(at, 3))))), draw.random() < 0.3, draw.random() < 0.2
        )
        for at in range(30)
    ]
    level = sunk(nodes, levels(nodes), frozenset())
    for at, node in enumerate(nodes):
        for w in node.waits:
            assert level[w] < level[at] or (level[w] == level[at] and not (nodes[w].kept and not node.kept))
    groups = [components([m for m in range(30) if level[m] == one], nodes) for one in set(level)]
    assert sorted(m for group in groups for part in group for m in part) == list(range(30))


# --- beside jit's other features ---------------------------------------------------------------------------


def test_donated_arguments(fuse: Any) -> None:
    fn = between(host)
    given = [X + 0.0, X + 0.0]
    same(fuse(fn, donate_argnums=0)(given[0]), jax.jit(fn, donate_argnums=0)(given[1]))


@pytest.mark.parametrize("check_vma", [False, True])
def test_collectives_stay_between_kernels(check_vma: bool, fuse: Any) -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    spec = jax.sharding.PartitionSpec("d")

    def fn(x: jax.Array) -> jax.Array:
        def body(c: jax.Array, i: jax.Array) -> Any:
            return loop(lax.psum(loop(c), "d") * 0.1 + x), i

        return lax.scan(body, loop(x), jnp.arange(2))[0]

    def run(fn: Any) -> Any:
        mapped = jax.shard_map(fn, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma)
        return jax.jit(mapped)(X), jax.grad(lambda x: jnp.sum(mapped(x)))(X)

    same(run(fuse(fn)), run(fn))


def test_grad_of_a_loop_with_an_effect(fuse: Any) -> None:
    ours, theirs = Log(), Log()

    def fn(log: Log) -> Any:
        def body(c: jax.Array, i: jax.Array) -> Any:
            jax.debug.callback(lambda v: log.note(0, v), c)
            return loop(c), i

        return lambda x: jnp.sum(lax.scan(body, loop(x), jnp.arange(2))[0])

    same(jax.grad(fuse(fn(ours)))(X), jax.grad(jax.jit(fn(theirs)))(X))
    jax.effects_barrier()
    assert sorted(map(str, ours.seen)) == sorted(map(str, theirs.seen)) and len(ours.seen) == 2


def test_a_loop_of_the_users_whose_body_and_test_are_kernels(fuse: Any) -> None:
    """XLA takes the operands of a kernel that is all of a body for loop invariants."""

    def run(jit: Any) -> Any:
        test = jit(lambda s: loop(s[1]).sum() > s[0])
        body = jit(lambda s: (s[0] + 3, loop(s[1] * 0.5)))
        return jax.jit(lambda x: lax.while_loop(test, body, (jnp.float32(0), x)))(X)

    same(run(fuse), run(jax.jit))


def test_for_a_gpu_each_kernel_is_one_call() -> None:
    def scanned(x: jax.Array) -> Any:
        return lax.scan(lambda c, i: (between(fourier)(c), c[0] + i), x, jnp.arange(3.0))

    def branching(x: jax.Array) -> Any:
        return lax.while_loop(lambda c: c[0] < 9, lambda c: lax.cond(c[1] > 0, between(fourier), loop, c), x)

    for fn, kernels in ((between(fourier), 2), (scanned, 2), (branching, 3), (jax.vmap(scanned), 2)):
        arg = jnp.stack([X, X]) if fn not in (scanned, branching) else X
        text = onelaunch.fuse(fn)._jitted.trace(arg).lower(lowering_platforms=("cuda",)).as_text()
        assert text.count("triton_kernel_call") == kernels, fn


def test_without_a_gpu_nothing_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("compiled for nothing")

    monkeypatch.setattr(Program, "split", never)
    monkeypatch.setattr(Program, "fused", property(never))
    monkeypatch.setattr("onelaunch.launch.jax.has_gpu", lambda: False)
    for fn in (in_scan, noisy(Log(), True)):
        same(onelaunch.fuse(fn)(X), jax.jit(fn)(X))


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_on_a_gpu(name: str) -> None:
    fn, kernels, _ = PROGRAMS[name]
    fused = onelaunch.fuse(fn)
    same(fused(*args_of(name)), jax.jit(fn)(*args_of(name)))
    assert fused.lower(*args_of(name)).launches == kernels


@pytest.mark.gpu
@pytest.mark.parametrize("ordered", [True, False])
def test_effects_on_a_gpu(ordered: bool) -> None:
    ours, theirs = Log(), Log()
    same(onelaunch.fuse(noisy(ours, ordered))(X), jax.jit(noisy(theirs, ordered))(X))
    jax.effects_barrier()
    assert sorted(map(str, ours.seen)) == sorted(map(str, theirs.seen))
    # JAX orders effects of one kind only: the debugging one (tag 1) is of another.
    assert not ordered or [tag for tag, _ in ours.seen if tag != 1] == [tag for tag, _ in theirs.seen if tag != 1]
