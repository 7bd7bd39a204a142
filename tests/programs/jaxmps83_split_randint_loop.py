"""10k iterations of split + randint in a fori_loop, nothing else.

Source: https://github.com/tillahoffmann/jax-mps/issues/83 (10k iterations: XLA CPU
0.004 s, device 6.8 s compiled / 38 s interpreted because every iteration synchronises).
int32 / uint32.
"""

import jax
import jax.numpy as jnp

SOURCE = "tillahoffmann/jax-mps#83"
LOOP = "fori_loop"
TRIPS = "10000"
DTYPE = "i32/u32"
REPORTED = "CPU 0.004 s; device 6.8 s (38 s interpreted)"


def _build(n):
    def fn(key):
        def body(_, c):
            key, total = c
            key, sub = jax.random.split(key)
            return key, total + jax.random.randint(sub, (), 0, 100)

        return jax.lax.fori_loop(0, n, body, (key, jnp.int32(0)))

    return fn, (jax.random.PRNGKey(0),)


def make():
    return _build(10_000)


def make_small():
    return _build(8)
