"""Random-walk Metropolis on the posterior of a logistic regression: 10,000 draws, all kept. float32.

One chain: nothing to batch, and each step sums 100 observations, so the parallel axis is the data inside the loop.

    python examples/metropolis.py [--small]
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp

import onelaunch

STEP = 0.25


def log_posterior(beta: jax.Array, features: jax.Array, labels: jax.Array) -> jax.Array:
    """Log density (up to a constant) at beta[d]: features[n, d], labels[n] in {0, 1}, standard normal prior."""
    logits = features @ beta
    return jnp.sum(labels * logits - jax.nn.softplus(logits)) - 0.5 * jnp.sum(beta**2)


def chain(key: jax.Array, features: jax.Array, labels: jax.Array, keys_per_step: jax.Array) -> tuple[jax.Array, ...]:
    """All draws f32[steps, d] and the number accepted; step i uses fold_in(key, keys_per_step[i])."""

    def step(state: tuple[jax.Array, jax.Array, jax.Array], i: jax.Array) -> tuple[Any, jax.Array]:
        beta, logp, accepted = state
        move_key, accept_key = jax.random.split(jax.random.fold_in(key, i))
        proposal = beta + STEP * jax.random.normal(move_key, beta.shape)
        logp_new = log_posterior(proposal, features, labels)
        accept = jnp.log(jax.random.uniform(accept_key)) < logp_new - logp
        beta = jnp.where(accept, proposal, beta)
        return (beta, jnp.where(accept, logp_new, logp), accepted + accept), beta

    beta0 = jnp.zeros(features.shape[1])
    start = (beta0, log_posterior(beta0, features, labels), jnp.zeros((), jnp.int32))
    (_, _, accepted), draws = jax.lax.scan(step, start, keys_per_step)
    return draws, accepted


def make(steps: int = 10_000, observations: int = 100, dimension: int = 4) -> tuple[Any, tuple[Any, ...]]:
    """10,000 draws of 4 coefficients given 100 observations."""
    k1, k2 = jax.random.split(jax.random.PRNGKey(1))
    features = jax.random.normal(k1, (observations, dimension))
    truth = jnp.linspace(-1.0, 1.0, dimension)
    labels = jax.random.bernoulli(k2, jax.nn.sigmoid(features @ truth)).astype(jnp.float32)
    return chain, (jax.random.PRNGKey(0), features, labels, jnp.arange(steps))


def make_small() -> tuple[Any, tuple[Any, ...]]:
    """Six draws of 2 coefficients given 7 observations."""
    return make(6, 7, 2)


def main() -> None:
    """Draw through onelaunch and print the posterior mean and the acceptance rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="six draws")
    options = parser.parse_args()
    fn, args = make_small() if options.small else make()
    fused = onelaunch.fuse(fn)
    jax.block_until_ready(fused(*args))
    start = time.perf_counter()
    draws, accepted = jax.block_until_ready(fused(*args))
    elapsed = time.perf_counter() - start
    mean = ", ".join(f"{m:.3f}" for m in jax.device_get(draws).mean(0))
    print(f"{len(draws)} draws on {jax.devices()[0].platform}: {elapsed * 1e3:.3f} ms")
    print(f"posterior mean ({mean}), accepted {int(accepted) / len(draws):.2f}")


if __name__ == "__main__":
    main()
