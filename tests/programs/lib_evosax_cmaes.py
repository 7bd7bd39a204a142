"""evosax CMA-ES on the 10-D Rosenbrock function, ask/tell in a scan.

Source: https://github.com/google/evojax/pull/21, PR 6 (CMA-ES in JAX; eigendecomposition
makes it slow) and https://github.com/RobertTLange/evosax. Population 16, 500
generations. float32; needs eigh and sort/argsort in the loop.
"""

import jax
import jax.numpy as jnp
from evosax.algorithms import CMA_ES

SOURCE = "google/evojax#21, #6; RobertTLange/evosax"
LIB = "evosax"
LOOP = "scan (eigh, sort inside)"
TRIPS = "500"
DTYPE = "f32"
REPORTED = "eigh-bound, 'too slow' for large policy"


def _build(pop, dim, gens):
    es = CMA_ES(population_size=pop, solution=jnp.zeros(dim))
    par = es.default_params

    def fn(key, mean):
        def rosen(x):
            return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

        def gen(s, key):
            k1, k2 = jax.random.split(key)
            x, s = es.ask(k1, s, par)
            f = jax.vmap(rosen)(x)
            s, _ = es.tell(k2, x, f, s, par)
            return s, f.min()

        s, best = jax.lax.scan(gen, es.init(key, mean, par), jax.random.split(key, gens))
        return best

    return fn, (jax.random.PRNGKey(0), jnp.ones(dim) * -0.5)


def make():
    return _build(16, 10, 500)


def make_small():
    return _build(4, 2, 2)
