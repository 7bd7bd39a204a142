"""PureJaxRL-style PPO: gymnax CartPole + flax actor-critic + optax, all in one scan.

Source: https://github.com/luchris429/purejaxrl (also issue 28) and
https://github.com/araffin/sbx/issues/35, #62 (the GPU does not help PPO without
images). Independent re-write. 4 environments x 128 steps, 4 epochs x 4 minibatches,
64-wide tanh networks; 10 updates per call (976 in the published run). float32.
"""

import jax
import jax.numpy as jnp
import flax.linen as nn
import gymnax
import optax

SOURCE = "luchris429/purejaxrl; araffin/sbx#35, #62"
LIB = "gymnax+flax+optax"
LOOP = "scan > (scan, reverse scan, scan > scan with grad)"
TRIPS = "10 x (128 + 128 + 16)"
DTYPE = "f32"
REPORTED = "sbx: CPU 5000 fps vs GPU 2000 fps"


class Net(nn.Module):
    width: int
    acts: int

    @nn.compact
    def __call__(self, x):
        a = nn.tanh(nn.Dense(self.width)(x))
        a = nn.tanh(nn.Dense(self.width)(a))
        v = nn.tanh(nn.Dense(self.width)(x))
        v = nn.tanh(nn.Dense(self.width)(v))
        return nn.Dense(self.acts)(a), nn.Dense(1)(v)[..., 0]


def _build(updates, n, steps, epochs, minis, width):
    env, ep = gymnax.make("CartPole-v1")
    net = Net(width, 2)
    tx = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(2.5e-4, eps=1e-5))

    def fn(key, params):
        def rollout(c, key):
            params, obs, st = c
            ka, ks = jax.random.split(key)
            logits, v = net.apply(params, obs)
            a = jax.random.categorical(ka, logits)
            lp = jnp.take_along_axis(jax.nn.log_softmax(logits), a[:, None], 1)[:, 0]
            obs2, st, r, *rest = jax.vmap(env.step, (0, 0, 0, None))(jax.random.split(ks, n), st, a, ep)
            done = rest[0]
            return (params, obs2, st), (obs, a, lp, v, r, done)

        def loss(p, b):
            obs, a, lp0, v0, adv, ret = b
            logits, v = net.apply(p, obs)
            logp = jax.nn.log_softmax(logits)
            lp = jnp.take_along_axis(logp, a[:, None], 1)[:, 0]
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            ratio = jnp.exp(lp - lp0)
            pg = -jnp.minimum(ratio * adv, jnp.clip(ratio, 0.8, 1.2) * adv).mean()
            vc = v0 + jnp.clip(v - v0, -0.2, 0.2)
            vl = 0.5 * jnp.maximum((v - ret) ** 2, (vc - ret) ** 2).mean()
            ent = -(jnp.exp(logp) * logp).sum(-1).mean()
            return pg + 0.5 * vl - 0.01 * ent

        def update(c, key):
            params, opt, obs, st = c
            kr, ke = jax.random.split(key)
            (_, obs, st), tr = jax.lax.scan(rollout, (params, obs, st), jax.random.split(kr, steps))
            last = net.apply(params, obs)[1]

            def gae(c, q):
                acc, nxt = c
                v, r, d = q
                live = 1.0 - d
                acc = r + 0.99 * nxt * live - v + 0.99 * 0.95 * live * acc
                return (acc, v), acc

            _, adv = jax.lax.scan(
                gae, (jnp.zeros_like(last), last), (tr[3], tr[4], tr[5].astype(jnp.float32)), reverse=True
            )
            data = (*tr[:4], adv, adv + tr[3])
            flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), data)

            def epoch(c, key):
                perm = jax.random.permutation(key, n * steps)
                mb = jax.tree.map(lambda x: x[perm].reshape(minis, -1, *x.shape[1:]), flat)

                def mini(c, b):
                    p, o = c
                    l, g = jax.value_and_grad(loss)(p, b)
                    u, o = tx.update(g, o, p)
                    return (optax.apply_updates(p, u), o), l

                return jax.lax.scan(mini, c, mb)

            (params, opt), l = jax.lax.scan(epoch, (params, opt), jax.random.split(ke, epochs))
            return (params, opt, obs, st), (l.mean(), tr[4].sum())

        k0, key = jax.random.split(key)
        obs, st = jax.vmap(env.reset, (0, None))(jax.random.split(k0, n), ep)
        (params, *_), out = jax.lax.scan(update, (params, tx.init(params), obs, st), jax.random.split(key, updates))
        return out

    return fn, (jax.random.PRNGKey(0), net.init(jax.random.PRNGKey(1), jnp.zeros((1, 4))))


def make():
    return _build(10, 4, 128, 4, 4, 64)


def make_small():
    return _build(1, 2, 2, 1, 2, 4)
