"""The #7024 program with a real haiku module, iterated by hk-transformed apply in a while_loop.

Source: https://github.com/jax-ml/jax/issues/7024. The reporter's network is a haiku
module whose weights pass softplus before the dot; noise is drawn per iteration.
Reported: CPU < 1 ms, GPU 7 s; 0.69 s -> 0.13 s with scan and pre-drawn noise.
8000 iterations (his real program). float32 here, see the f64 form in
jax7024_noisy_mlp_while.py. Module written independently.
"""

import haiku as hk
import jax
import jax.numpy as jnp

SOURCE = "jax-ml/jax#7024 (haiku module)"
LIB = "dm-haiku"
LOOP = "while_loop"
TRIPS = "8000"
DTYPE = "f32"
REPORTED = "CPU <1 ms; GPU 7 s (0.69 / 0.13 s after edits)"


class PositiveDense(hk.Module):
    def __init__(self, width, name=None):
        super().__init__(name=name)
        self.width = width

    def __call__(self, x):
        w = hk.get_parameter("kernel", [x.shape[-1], self.width], x.dtype, init=hk.initializers.RandomNormal(1.0, -1.0))
        return x @ jax.nn.softplus(w)


class Noisy(hk.Module):
    def __init__(self, widths):
        super().__init__()
        self.widths = widths

    def __call__(self, x):
        for i, n in enumerate(self.widths):
            x = PositiveDense(n)(x)
            x = x + 0.01 * jax.random.normal(hk.next_rng_key(), x.shape)
            if i + 1 < len(self.widths):
                x = jax.nn.sigmoid(x)
        return x


def _build(steps, widths=(8, 8, 5)):
    net = hk.transform(lambda x: Noisy(widths)(x))

    def fn(params, key, x0):
        def body(c):
            i, key, x = c
            key, sub = jax.random.split(key)
            return i + 1, key, jnp.tanh(0.7 * x + 0.05 * net.apply(params, sub, x))

        return jax.lax.while_loop(lambda c: c[0] < steps, body, (jnp.int32(0), key, x0))

    x0 = jnp.ones((widths[-1],))
    return fn, (net.init(jax.random.PRNGKey(0), x0), jax.random.PRNGKey(1), x0)


def make():
    return _build(8000)


def make_small():
    return _build(4, (3, 2))
