"""mctx Gumbel MuZero search: a nested while_loop walk down a growing tree per simulation.

Source: https://github.com/google-deepmind/mctx/issues/107 ("loop_fn in search.py becomes
slow as the tree depth increases": with a deep tree the selection and backup while_loops
take most of the search time). 16 batched roots, 64 simulations, 8 actions, a linear
model as recurrent function. float32/int32.
"""

import jax
import jax.numpy as jnp
import mctx

SOURCE = "google-deepmind/mctx#107"
LIB = "mctx"
LOOP = "fori_loop > while_loop (simulate, backward)"
TRIPS = "64 x depth"
DTYPE = "f32/i32"
REPORTED = "selection/backup loops dominate with depth"


def _build(b, sims, acts, d):
    def fn(key, W, wv, wr, root):
        def model(params, key, a, emb):
            e = jnp.tanh(emb @ W + jax.nn.one_hot(a, acts) @ wr[:acts])
            out = mctx.RecurrentFnOutput(
                reward=0.1 * e[:, 0],
                discount=jnp.full(b, 0.99),
                prior_logits=e @ wr[acts:].T if wr.shape[0] == 2 * acts else e[:, :acts],
                value=jnp.tanh(e @ wv),
            )
            return out, e

        r = mctx.RootFnOutput(prior_logits=jnp.tanh(root[:, :acts]), value=jnp.zeros(b), embedding=root)
        o = mctx.gumbel_muzero_policy(
            None,
            key,
            r,
            model,
            num_simulations=sims,
            max_num_considered_actions=acts,
            qtransform=mctx.qtransform_completed_by_mix_value,
        )
        return o.action, o.action_weights, o.search_tree.node_values

    k = jax.random.split(jax.random.PRNGKey(0), 4)
    return fn, (
        k[0],
        0.5 * jax.random.normal(k[1], (d, d)),
        jax.random.normal(k[2], (d,)),
        0.5 * jax.random.normal(k[3], (2 * acts, d)),
        jax.random.normal(k[0], (b, d)),
    )


def make():
    return _build(16, 64, 8, 32)


def make_small():
    return _build(1, 2, 2, 3)
