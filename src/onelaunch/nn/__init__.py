"""The row kernels for JAX: names as in jax.nn and optax."""

from onelaunch.nn.cross_entropy import (
    CrossEntropyOutput,
    cross_entropy,
    softmax_cross_entropy,
    softmax_cross_entropy_with_integer_labels,
)
from onelaunch.nn.linear_cross_entropy import linear_cross_entropy
from onelaunch.nn.softmax import log_softmax, logsumexp, softmax

__all__ = [
    "CrossEntropyOutput",
    "cross_entropy",
    "linear_cross_entropy",
    "log_softmax",
    "logsumexp",
    "softmax",
    "softmax_cross_entropy",
    "softmax_cross_entropy_with_integer_labels",
]
