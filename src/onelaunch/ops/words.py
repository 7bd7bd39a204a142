"""How JAX's compound dtypes lie in plain arrays: a typed key or a complex number is its words along a last dim."""

from __future__ import annotations

import keyword
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

#: the implementation of a key by the name of its dtype
KEY_KINDS = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}
#: the dtype of the parts of a complex dtype
PARTS: dict[np.dtype, np.dtype] = {
    np.dtype("complex64"): np.dtype("float32"),
    np.dtype("complex128"): np.dtype("float64"),
}


def identifier(name: str) -> str:
    """A name of the user's as a Python identifier: ``<lambda>`` becomes ``lambda_``, ``w[0]['a']`` ``w_0_a``."""
    word = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "kernel"
    word = f"_{word}" if word[0].isdigit() else word
    return f"{word}_" if keyword.iskeyword(word) else word


def is_key(aval: Any) -> bool:
    """Whether an array or abstract value holds typed keys."""
    return bool(jnp.issubdtype(aval.dtype, jax.dtypes.prng_key))


def is_complex(aval: Any) -> bool:
    """Whether an array or abstract value holds complex numbers."""
    return not is_key(aval) and aval.dtype in PARTS


def is_compound(aval: Any) -> bool:
    """Whether an abstract value has a dim more as words than in JAX."""
    return is_key(aval) or is_complex(aval)


def key_shape(aval: Any) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of the words behind an abstract value; those of the value itself where it is plain."""
    if is_key(aval):
        aval = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype))
    if is_complex(aval):
        return (*aval.shape, 2), PARTS[aval.dtype]
    dtype: np.dtype = np.dtype(aval.dtype)
    return tuple(aval.shape), dtype


def raw(const: Any) -> np.ndarray:
    """A constant (array, typed key, number) as the numpy array of its words."""
    if hasattr(const, "dtype") and is_key(const):
        with jax.ensure_compile_time_eval():  # a call generates its kernel while jax.jit traces
            return np.asarray(jax.random.key_data(const))
    const = np.asarray(const)
    return np.stack([const.real, const.imag], -1) if const.dtype in PARTS else const


def to_words(x: jax.Array) -> jax.Array:
    """The words of an array, as a kernel takes them."""
    if is_key(x):
        return jax.random.key_data(x)
    return jnp.stack([lax.real(x), lax.imag(x)], axis=-1) if is_complex(x) else x


def from_words(aval: Any, words: jax.Array) -> jax.Array:
    """The array that an abstract value describes, from its words."""
    if is_key(aval):
        return jax.random.wrap_key_data(words, impl=KEY_KINDS[str(aval.dtype)])
    return lax.complex(words[..., 0], words[..., 1]) if is_complex(aval) else words
