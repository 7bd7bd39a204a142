"""iLQR on a unicycle: jacobians along a rollout, Riccati reverse scan, line search.

Source: https://github.com/google/trajax/issues/16 (tvlqr internals: small solves per
time step, positive-definite projection) and
https://github.com/jax-ml/jax/issues/1954 (linear rollouts, scan so that gradients
work). State 4, control 2, horizon 60, 15 iterations; 2x2 solve by Cholesky
(jax.scipy.linalg.cho_solve). float32.
"""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve

SOURCE = "google/trajax#16; jax-ml/jax#1954"
LOOP = "fori_loop > scan, reverse scan, vmap(scan), jacfwd/hessian"
TRIPS = "15 x 60 x 3"
DTYPE = "f32"
REPORTED = "none given"


def _build(T, iters, n_alpha):
    dt = 0.1

    def dyn(x, u):
        return x + dt * jnp.stack([x[3] * jnp.cos(x[2]), x[3] * jnp.sin(x[2]), u[0], u[1]])

    def fn(x0, goal, us):
        def stage(x, u):
            return 0.05 * jnp.sum(u**2) + 0.1 * jnp.sum((x - goal) ** 2)

        def final(x):
            return 50.0 * jnp.sum((x - goal) ** 2)

        def rollout(us):
            def st(x, u):
                y = dyn(x, u)
                return y, (x, stage(x, u))

            xT, (xs, c) = jax.lax.scan(st, x0, us)
            return xs, xT, jnp.sum(c) + final(xT)

        def iteration(_, c):
            us, cost = c
            xs, xT, _ = rollout(us)
            A, B = jax.vmap(jax.jacfwd(dyn, (0, 1)))(xs, us)
            lx, lu = jax.vmap(jax.grad(stage, (0, 1)))(xs, us)
            lxx, luu = 0.2 * jnp.eye(4), 0.1 * jnp.eye(2)

            def riccati(v, q):
                Vx, Vxx = v
                A, B, lx, lu = q
                Qx, Qu = lx + A.T @ Vx, lu + B.T @ Vx
                Qxx, Quu = lxx + A.T @ Vxx @ A, luu + B.T @ Vxx @ B
                Qux = B.T @ Vxx @ A
                F = cho_factor(Quu + 1e-4 * jnp.eye(2), lower=True)
                k, K = -cho_solve(F, Qu), -cho_solve(F, Qux)
                return (Qx + K.T @ Qu, Qxx + Qux.T @ K), (k, K)

            _, (k, K) = jax.lax.scan(
                riccati, (jax.grad(final)(xT), jax.hessian(final)(xT)), (A, B, lx, lu), reverse=True
            )

            def attempt(a):
                def st(x, q):
                    xr, u, k, K = q
                    u = u + a * k + K @ (x - xr)
                    return dyn(x, u), u

                return jax.lax.scan(st, x0, (xs, us, k, K))[1]

            cand = jax.vmap(attempt)(0.5 ** jnp.arange(n_alpha))
            costs = jax.vmap(lambda u: rollout(u)[2])(cand)
            costs = jnp.where(jnp.isnan(costs), jnp.inf, costs)
            b = jnp.argmin(costs)
            better = costs[b] < cost
            return jnp.where(better, cand[b], us), jnp.where(better, costs[b], cost)

        return jax.lax.fori_loop(0, iters, iteration, (us, rollout(us)[2]))

    return fn, (jnp.zeros(4), jnp.array([2.0, 1.0, 0.5, 0.0]), jnp.full((T, 2), 0.01))


def make():
    return _build(60, 15, 8)


def make_small():
    return _build(3, 1, 2)
