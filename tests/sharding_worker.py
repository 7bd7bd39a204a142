"""Run by test_sharding.py in a process with eight devices: prints "ok" after each check."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import onelaunch
from onelaunch import nn
from test_compose import fused_equations

MESH = Mesh(np.array(jax.devices()), ("members",))
SPLIT, WHOLE = P("members"), P()
XS = jnp.linspace(-1, 1, 16 * 3).reshape(16, 3)
W = jnp.eye(3) * 0.5 + 0.1


def rollout(w: jax.Array, x: jax.Array) -> jax.Array:
    return lax.scan(lambda c, _: (jnp.tanh(w @ c), c.sum()), x, None, length=3)[1]


def ensemble(w: jax.Array, xs: jax.Array) -> jax.Array:
    return jax.vmap(rollout, (None, 0))(w, xs)


def close(got: Any, want: Any, name: str) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), got, want)
    print(f"ok {name}", flush=True)


def by_jax(x: jax.Array) -> jax.Array:
    """The gradient of the mean cross-entropy with labels 0, 1, ..."""
    return (jax.nn.softmax(x) - jnp.eye(*x.shape)) / x.shape[0]


def sharded(fn: Any, out: Any = SPLIT, **options: Any) -> Any:
    return jax.shard_map(fn, mesh=MESH, in_specs=(WHOLE, SPLIT), out_specs=out, **options)


def main() -> None:
    assert len(jax.devices()) == 8
    fused = onelaunch.fuse(ensemble, fallback="error")
    want = ensemble(W, XS)

    inside = sharded(fused)
    close(inside(W, XS), want, "fuse inside shard_map")
    assert fused_equations(jax.make_jaxpr(inside)(W, XS).jaxpr) == 1
    close(jax.jit(inside)(W, jax.device_put(XS, NamedSharding(MESH, SPLIT))), want, "with sharded arguments, under jit")
    close(sharded(fused, check_vma=False)(W, XS), want, "without checks")
    placed = jax.jit(inside)(W, XS)
    assert placed.sharding.is_equivalent_to(NamedSharding(MESH, SPLIT), 2)

    mean = sharded(lambda w, xs: lax.pmean(fused(w, xs).mean(), "members"), WHOLE)
    close(mean(W, XS), want.mean(), "psum outside the kernel")
    slope = jax.grad(lambda w: jnp.mean(ensemble(w, XS)))(W)
    close(jax.grad(mean)(W, XS), slope, "gradient of shared weights through shard_map")

    closed = sharded(lambda w, xs: lax.pmean(onelaunch.fuse(lambda x: ensemble(w, x))(xs).mean(), "members"), WHOLE)
    close(jax.grad(closed)(W, XS), slope, "gradient of weights that are closed over")
    both = onelaunch.fuse(lambda w, xs: (w * 2, ensemble(w, xs)), fallback="error")
    one, other = sharded(both, (WHOLE, SPLIT))(W, XS)
    close((one, other), (W * 2, want), "a result that is the same on every device stays so")

    def local(w: jax.Array, xs: jax.Array) -> Any:
        w = lax.pcast(w, "members", to="varying")
        return lax.pmean(onelaunch.fuse(jax.grad(lambda w, xs: jnp.mean(ensemble(w, xs))))(w, xs), "members")

    close(sharded(local, WHOLE)(W, XS), slope, "gradient inside, summed over devices")
    close(jax.jvp(inside, (W, XS), (W, XS))[1], jax.jvp(ensemble, (W, XS), (W, XS))[1], "jvp of shard_map")
    close(jax.vmap(inside, (0, None))(jnp.stack([W, 2 * W]), XS)[0], want, "vmap of shard_map")
    collective = sharded(onelaunch.fuse(lambda w, xs: lax.psum(ensemble(w, xs), "members")), WHOLE)
    close(collective(W, XS), want.reshape(8, 2, 3).sum(0), "a collective inside stays in XLA")

    by_pmap = jax.pmap(fused, in_axes=(None, 0))(W, XS.reshape(8, 2, 3))
    close(by_pmap.reshape(16, 3), want, "pmap")
    spread = jax.device_put(XS, NamedSharding(MESH, SPLIT))
    left = onelaunch.fuse(ensemble)
    close(left(W, spread), want, "sharded arguments without shard_map stay in XLA")
    assert left(W, spread).sharding == jax.jit(ensemble)(W, spread).sharding
    assert [r.stage for r in left.lower(W, spread).refusals] == ["sharding"]
    try:
        fused(W, spread)
        raise AssertionError("strict on several devices")
    except onelaunch.FusionError as error:
        assert error.stage == "sharding" and left.lower(W, spread).launches == 0
    logits = jnp.linspace(-2, 2, 16 * 40).reshape(16, 40) ** 3
    rows = jax.value_and_grad(lambda x: nn.cross_entropy(x, jnp.arange(2)))
    close(sharded(lambda _, x: rows(x)[1])(W, logits), sharded(lambda _, x: by_jax(x))(W, logits), "rows, op by op")
    there = jax.device_put(logits, NamedSharding(MESH, SPLIT))
    assert nn.softmax(there).sharding == jax.jit(jax.nn.softmax)(there).sharding
    there = jax.device_put(XS, jax.devices()[3])
    result = fused(jax.device_put(W, jax.devices()[3]), there)
    assert result.devices() == {jax.devices()[3]}
    close(result, want, "committed to another device")
    with jax.default_device(jax.devices()[5]):
        assert fused(np.asarray(W), np.asarray(XS)).devices() == {jax.devices()[5]}
    constrained = onelaunch.fuse(lambda x: lax.with_sharding_constraint(x * 2, NamedSharding(MESH, SPLIT)))
    close(constrained(XS), XS * 2, "a sharding constraint inside")
    keys = jax.random.split(jax.random.key(0), 16)
    draws = onelaunch.fuse(jax.vmap(lambda k: jax.random.normal(k, (3,))), fallback="error")
    split = jax.shard_map(draws, mesh=MESH, in_specs=SPLIT, out_specs=SPLIT)
    close(split(keys), jax.vmap(lambda k: jax.random.normal(k, (3,)))(keys), "keys split over devices")
    print("all ok")


if __name__ == "__main__":
    main()
