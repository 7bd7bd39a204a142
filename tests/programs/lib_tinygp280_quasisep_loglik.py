"""tinygp quasiseparable GP log-likelihood and its gradient (SHO kernel, scan solver).

Source: https://github.com/dfm/tinygp/issues/280, #238 and PR 269. float64, J = 2,
N = 5.6e4: serial CPU 0.009 s, serial GPU 1.57 s; N = 3.2e5: 0.024 / 8.96 s; N = 1.8e6:
0.114 / 52.5 s (RTX 6000 Ada). Here N = 56,000, float32 value and gradient over
three kernel parameters.
"""

import numpy as np
import jax
import jax.numpy as jnp
import tinygp

SOURCE = "dfm/tinygp#280, #238, PR 269"
LIB = "tinygp"
LOOP = "scan + transposed scan"
TRIPS = "56000 x 2-4"
DTYPE = "f32 (f64 in the report)"
REPORTED = "CPU 0.009 s; GPU 1.57 s (N=5.6e4)"


def _build(n):
    def fn(theta, t, y):
        def nll(th):
            w, q, s = jnp.exp(th)
            k = tinygp.kernels.quasisep.SHO(omega=w, quality=q, sigma=s)
            gp = tinygp.GaussianProcess(k, t, diag=0.1, assume_sorted=True)
            return -gp.log_probability(y)

        return jax.value_and_grad(nll)(theta)

    g = np.random.default_rng(0)
    t = np.sort(g.uniform(0, n / 10, n))
    f = lambda x: jnp.asarray(x, jnp.float32)
    return fn, (f([0.0, 1.0, 0.0]), f(t), f(np.sin(t) + 0.3 * g.normal(size=n)))


def make():
    return _build(56_000)


def make_small():
    return _build(5)
