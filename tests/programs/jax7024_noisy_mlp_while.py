"""Noisy softplus-MLP iterated in a while_loop with fresh normal noise every step.

Source: https://github.com/jax-ml/jax/issues/7024 ("Extremely slow GPU execution").
The reporter runs a tiny network (dot with softplus weights, noise per step) inside
lax.while_loop in float64; his real program makes 8000 iterations.
Reported: CPU < 1 ms against GPU 7 s; later 0.69 s, and 0.13 s when the noise is
drawn outside the loop with scan.
The CPU/GPU figures belong to the posted short script, not to 8000 iterations (which take
tens of ms on a CPU). Sizes: 8000 iterations from the thread; layer widths (5, 8, 8, 3) chosen here (the
stored text does not show them). dtype float64 (the thread uses enable_x64).
This is an independent re-implementation without haiku.
"""

import jax
import jax.numpy as jnp

jax.config.update("jax_enable_x64", True)

SOURCE = "jax-ml/jax#7024"
LOOP = "while_loop"
TRIPS = "8000"
DTYPE = "f64"
REPORTED = "CPU <1 ms; GPU 7 s (0.69 s / 0.13 s after edits)"


def _build(n_steps, widths=(5, 8, 8, 3)):
    def net(ws, v, key):
        for depth, w in enumerate(ws):
            v = v @ jax.nn.softplus(w)
            key, sub = jax.random.split(key)
            v = v + 0.01 * jax.random.normal(sub, v.shape, v.dtype)
            if depth + 1 < len(ws):
                v = jax.nn.sigmoid(v)
        return v, key

    def fn(key, ws, x0):
        feed = jnp.linspace(-1.0, 1.0, widths[0] * widths[-1]).reshape(widths[-1], widths[0])

        def keep_going(state):
            step, _, _, _ = state
            return step < n_steps

        def advance(state):
            step, key, x, total = state
            y, key = net(ws, x, key)
            x = jnp.tanh(0.5 * x + 0.1 * y @ feed)
            return step + 1, key, x, total + y

        start = (jnp.int32(0), key, x0, jnp.zeros((widths[-1],), x0.dtype))
        step, _, x, total = jax.lax.while_loop(keep_going, advance, start)
        return step, x, total / n_steps

    ks = jax.random.split(jax.random.PRNGKey(3), len(widths))
    ws = tuple(jax.random.normal(k, (a, b), jnp.float64) - 1.0 for k, a, b in zip(ks, widths[:-1], widths[1:]))
    return fn, (jax.random.PRNGKey(0), ws, jnp.ones((widths[0],), jnp.float64))


def make():
    return _build(8000)


def make_small():
    return _build(6, widths=(3, 4, 2))
