"""CartPole rollout + generalised advantage estimation, written without a library.

Source: https://github.com/araffin/sbx/issues/35 (sbx: 5000 fps on the CPU, 2000 fps
after installing the GPU build) and purejaxrl. 16 environments, 128 steps, MLP policy
4-64-64-2 with categorical sampling, reset on done, then reverse-scan GAE. float32.
"""

import jax
import jax.numpy as jnp

SOURCE = "araffin/sbx#35; luchris429/purejaxrl"
LOOP = "scan + reverse scan"
TRIPS = "128 + 128"
DTYPE = "f32"
REPORTED = "CPU 5000 fps; GPU RTX 4090 2000 fps"


def _build(envs, steps, width):
    def physics(s, a):
        x, xd, th, thd = s
        f = jnp.where(a == 1, 10.0, -10.0)
        tmp = (f + 0.05 * thd**2 * jnp.sin(th)) / 1.1
        acc = (9.8 * jnp.sin(th) - jnp.cos(th) * tmp) / (0.5 * (4 / 3 - 0.1 * jnp.cos(th) ** 2 / 1.1))
        xacc = tmp - 0.05 * acc * jnp.cos(th) / 1.1
        return jnp.stack([x + 0.02 * xd, xd + 0.02 * xacc, th + 0.02 * thd, thd + 0.02 * acc])

    def fn(key, params):
        def net(o):
            h = o
            for w, b in params[:-2]:
                h = jnp.tanh(h @ w + b)
            (wp, bp), (wv, bv) = params[-2:]
            return h @ wp + bp, (h @ wv + bv)[..., 0]

        def fresh(k):
            return jax.random.uniform(k, (4,), minval=-0.05, maxval=0.05)

        def step(c, _):
            key, s, t = c
            key, ka, kr = jax.random.split(key, 3)
            logits, v = net(s)
            a = jax.random.categorical(ka, logits)
            lp = jnp.take_along_axis(jax.nn.log_softmax(logits), a[:, None], 1)[:, 0]
            s2 = jax.vmap(physics)(s, a)
            t = t + 1
            done = (jnp.abs(s2[:, 0]) > 2.4) | (jnp.abs(s2[:, 2]) > 0.2095) | (t >= 500)
            new = jax.vmap(fresh)(jax.random.split(kr, envs))
            s2 = jnp.where(done[:, None], new, s2)
            return (key, s2, jnp.where(done, 0, t)), (v, lp, a, done)

        key, k0 = jax.random.split(key)
        s = jax.vmap(fresh)(jax.random.split(k0, envs))
        (key, s, _), (v, lp, a, done) = jax.lax.scan(step, (key, s, jnp.zeros(envs, jnp.int32)), None, length=steps)
        last = net(s)[1]

        def gae(c, q):
            adv, nxt = c
            v, d = q
            live = 1.0 - d.astype(v.dtype)
            delta = 1.0 + 0.99 * nxt * live - v
            adv = delta + 0.99 * 0.95 * live * adv
            return (adv, v), adv

        _, adv = jax.lax.scan(gae, (jnp.zeros_like(last), last), (v, done), reverse=True)
        return adv, lp, a, done

    k = jax.random.split(jax.random.PRNGKey(0), 4)
    d = lambda k, i, o: (jax.random.normal(k, (i, o)) / jnp.sqrt(i), jnp.zeros(o))
    params = [d(k[0], 4, width), d(k[1], width, width), d(k[2], width, 2), d(k[3], width, 1)]
    return fn, (jax.random.PRNGKey(1), params)


def make():
    return _build(16, 128, 64)


def make_small():
    return _build(2, 3, 4)
