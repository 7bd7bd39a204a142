"""distrax HMM forward-backward inside an EM loop.

Source: class of https://github.com/pyro-ppl/numpyro/issues/1010 and
https://github.com/probml/dynamax/pull/212 (HMM message passing by serial scan).
4 states, 1000 steps, 10 EM iterations on the transition matrix. float32.
"""

import jax
import jax.numpy as jnp
import distrax

SOURCE = "pyro-ppl/numpyro#1010 class; dynamax#212"
LIB = "distrax"
LOOP = "fori_loop > scan, reverse scan"
TRIPS = "10 x 1000 x 2"
DTYPE = "f32"
REPORTED = "none stored"


def _build(t, k, iters):
    def fn(A, mu, y):
        def em(_, A):
            hmm = distrax.HMM(
                trans_dist=distrax.Categorical(probs=A),
                init_dist=distrax.Categorical(probs=jnp.ones(k) / k),
                obs_dist=distrax.Normal(mu, jnp.ones(k)),
            )
            alphas, betas, post, ll = hmm.forward_backward(y)
            lik = jax.vmap(hmm.obs_dist.log_prob)(y)
            lik = jnp.exp(lik - lik.max(1, keepdims=True))
            xi = alphas[:-1, :, None] * A[None] * (lik[1:] * betas[1:])[:, None, :]
            xi = xi / jnp.maximum(xi.sum((1, 2), keepdims=True), 1e-20)
            n = xi.sum(0) + 1e-3
            return n / n.sum(1, keepdims=True)

        return jax.lax.fori_loop(0, iters, em, A)

    k1, k2 = jax.random.split(jax.random.PRNGKey(0))
    A = jax.nn.softmax(jax.random.normal(k1, (k, k)), -1)
    mu = jnp.linspace(-3, 3, k)
    return fn, (A, mu, mu[jax.random.randint(k2, (t,), 0, k)] + jax.random.normal(k1, (t,)))


def make():
    return _build(1000, 4, 10)


def make_small():
    return _build(3, 2, 1)
