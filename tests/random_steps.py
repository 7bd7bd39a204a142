"""Random steps without blocks: each takes what is known so far and gives a function of it, for most primitives.

A step is a function from the list of values made so far to one value more. Floats are kept within about [-1, 1], so
that rounding is not amplified; types are found by ``jax.eval_shape``, and a step that JAX refuses is drawn anew.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

R = jax.random
Step = Callable[[Sequence[Any]], Any]
Types = Sequence[Any]

SMOOTH: tuple[Callable[[Any], Any], ...] = (
    jnp.sin,
    jnp.cos,
    jnp.tanh,
    jax.nn.sigmoid,
    jnp.square,
    jnp.negative,
    lambda x: x * x.dtype.type(0.5) + x.dtype.type(0.25),
    lambda x: jnp.exp(-jnp.square(x)),
    lambda x: jnp.sqrt(jnp.abs(x) + 1),
    lambda x: lax.rsqrt(jnp.square(x) + 1),
    lambda x: jnp.log1p(jnp.square(x)),
    lambda x: jnp.expm1(x * x.dtype.type(0.25)),
    lambda x: 1 / (2 + jnp.square(x)),
    lambda x: jax.scipy.special.erf(x),
    lambda x: jnp.arctan2(x, x.dtype.type(1.5)),
    lambda x: lax.integer_pow(x, 3),
    lambda x: jax.nn.softplus(x) * x.dtype.type(0.5),
    lambda x: jnp.where(x > x.dtype.type(0.1), x, -x * x.dtype.type(0.5)),
    lambda x: jnp.clip(x, -0.4, 0.6),
    jax.nn.relu,
    jnp.abs,
)
ROUGH: tuple[Callable[[Any], Any], ...] = (
    jnp.sign,
    lambda x: jnp.floor(x * 4 + 0.3) / 8,
    jnp.isfinite,
    lax.stop_gradient,
)
WHOLE: tuple[Callable[[Any], Any], ...] = (
    lambda x: ~x,
    lambda x: x + x.dtype.type(1),
    lambda x: x * x.dtype.type(3),
    lambda x: x >> x.dtype.type(1),
    lambda x: x << x.dtype.type(2),
    lambda x: x % x.dtype.type(7),
    lambda x: x // x.dtype.type(3),
    jnp.negative,
    jnp.abs,
    lax.population_count,
    lax.clz,
)
#: bounded for bounded floats; wrapping for integers
PAIRS: tuple[Callable[[Any, Any], Any], ...] = (
    jnp.add,
    jnp.subtract,
    jnp.multiply,
    jnp.maximum,
    jnp.minimum,
    lambda x, y: jnp.where(x < y, x, y),
    lambda x, y: x / (2 + jnp.abs(y)),
    lambda x, y: jnp.logaddexp(x, y),
    lambda x, y: jnp.hypot(x, y + 2),
)
#: of complex numbers made of a float array, real again
COMPLEX: tuple[Callable[[Any], Any], ...] = (
    lambda z: jnp.abs(z * z + 1),
    lambda z: jnp.real(jnp.exp(z * 0.3)),
    lambda z: jnp.imag(z * jnp.conj(z) + z),
    lambda z: jnp.angle(z + 2),
    lambda z: jnp.real(1 / (z + 3)),
    lambda z: jnp.imag(jnp.cumsum(z.ravel())),
)
#: of a vector
VECTOR: tuple[Callable[[Any], Any], ...] = (
    lambda x: lax.top_k(x, min(2, x.size))[0],
    lambda x: lax.top_k(x, 1)[1],
    lambda x: jnp.searchsorted(jnp.sort(x), x),
    lambda x: jnp.convolve(x, x.dtype.type(0.5) * jnp.ones(2, x.dtype)),
    lambda x: jax.nn.one_hot(jnp.argmax(x), 3),
    lambda x: jax.nn.softmax(x),
    lambda x: jnp.interp(x, jnp.linspace(-1, 1, 5), jnp.arange(5.0) / 5),
    lambda x: lax.map(lambda e: jnp.sin(e) * 0.5, x),
    lambda x: jnp.diff(x, append=x[:1]),
    lambda x: jnp.where(jnp.arange(x.size) % 2 == 0, x, 0),
)
#: of a well-conditioned square matrix
MATRIX: tuple[Callable[[Any], Any], ...] = (
    lambda m: jnp.linalg.solve(m, m[0]),
    lambda m: jnp.linalg.cholesky(m @ m.T),
    lambda m: jnp.tanh(jnp.linalg.det(m) / 20),
    lambda m: jnp.linalg.inv(m),
    lambda m: jax.scipy.linalg.solve_triangular(m, m[:, 0], lower=True),
)
TESTS = (jnp.less, jnp.greater_equal, jnp.equal, jnp.not_equal)
FOLDS = (jnp.sum, jnp.mean, jnp.max, jnp.min, jnp.prod, jax.nn.logsumexp)
WHOLE_FOLDS = (jnp.sum, jnp.max, jnp.min, jnp.prod, jnp.any, jnp.all)
PREFIXES = (jnp.cumsum, jnp.cumprod, lax.cummax, lax.cummin, jnp.sort, lax.cumlogsumexp)


def is_key(t: Any) -> bool:
    return bool(jnp.issubdtype(t.dtype, jax.dtypes.prng_key))


def is_float(t: Any) -> bool:
    return bool(jnp.issubdtype(t.dtype, jnp.floating))


def is_whole(t: Any) -> bool:
    return bool(jnp.issubdtype(t.dtype, jnp.integer))


def is_number(t: Any) -> bool:
    return is_float(t) or is_whole(t)


def convert(x: Any, dtype: Any) -> Any:
    """A value as another dtype: floats as small integers, integers as floats within [-1, 1].

    Steps and signs of floats lie beside the exact values (0, 1/2, 1) that rounding may just reach or just miss.
    """
    wanted = jax.ShapeDtypeStruct((), dtype)
    if is_float(x) and is_whole(wanted):
        x = jnp.clip(jnp.floor(x * 8 + 0.3), 0 if jnp.issubdtype(dtype, jnp.unsignedinteger) else -8, 8)
    elif is_whole(x) and is_float(wanted):
        x = (x % x.dtype.type(17)).astype(jnp.float32) / 17
    elif dtype == jnp.bool_:
        return x > (0.07 if is_float(x) else 0)
    return lax.convert_element_type(x, dtype)


def fit(x: Any, wanted: Any) -> Any:
    """Any plain value as one of the wanted type."""
    return convert(jnp.resize(x, wanted.shape), wanted.dtype)


class Steps:
    """Draws steps from a source of random choices (``random.Random``, or hypothesis' that shrinks)."""

    def __init__(self, source: random.Random):
        self.random = source

    def pick(self, types: Types, wanted: Callable[[Any], bool], least: int = 0) -> int | None:
        """The number of a known value of a wanted kind and rank."""
        found = [k for k, t in enumerate(types) if wanted(t) and len(t.shape) >= least]
        return self.random.choice(found) if found else None

    def unary(self, types: Types) -> Step | None:
        k = self.pick(types, lambda t: not is_key(t))
        if k is None:
            return None
        if types[k].dtype == jnp.bool_:
            return lambda xs: ~xs[k]
        table = (SMOOTH * 3 + ROUGH) if is_float(types[k]) else WHOLE
        fn = self.random.choice(table)
        return lambda xs: fn(xs[k])

    def binary(self, types: Types) -> Step | None:
        a, b = self.pick(types, is_number), self.pick(types, is_number)
        if a is None or b is None:
            return None
        real = is_float(types[a]) or is_float(types[b])
        fn = self.random.choice(PAIRS if real else PAIRS[:6])
        return lambda xs: jnp.tanh(fn(xs[a], xs[b])) if real else fn(xs[a], xs[b])

    def test(self, types: Types) -> Step | None:
        a, b = self.pick(types, is_number), self.pick(types, is_number)
        if a is None or b is None:
            return None
        fn = self.random.choice(TESTS)
        coarse = lambda x: jnp.floor(x * 5 + 0.3) if is_float(x) else x  # noqa: E731
        return lambda xs: fn(coarse(xs[a]), coarse(xs[b]))

    def select(self, types: Types) -> Step | None:
        test = self.pick(types, lambda t: t.dtype == jnp.bool_)
        a, b = self.pick(types, is_number), self.pick(types, is_number)
        if test is None or a is None or b is None:
            return None
        return lambda xs: jnp.where(xs[test], xs[a], xs[b])

    def cast(self, types: Types) -> Step | None:
        k = self.pick(types, lambda t: not is_key(t))
        wide = [jnp.float64, jnp.int64] if jax.config.jax_enable_x64 else []
        dtype = self.random.choice(
            [jnp.float32, jnp.float32, jnp.float16, jnp.bfloat16, jnp.int32, jnp.uint32, jnp.int8, jnp.bool_, *wide]
        )
        return lambda xs: convert(xs[k], dtype)

    def fold(self, types: Types) -> Step | None:
        k = self.pick(types, is_number, 1)
        if k is None:
            return None
        axis = self.random.choice([None, *range(len(types[k].shape))])
        keep = self.random.random() < 0.3
        if self.random.random() < 0.2:
            where = self.random.choice((jnp.argmax, jnp.argmin))
            return lambda xs: where(xs[k], axis, keepdims=keep)
        if not is_float(types[k]):
            fold = self.random.choice(WHOLE_FOLDS)
            return lambda xs: fold(xs[k], axis=axis, keepdims=keep)
        fn = self.random.choice(FOLDS)
        return lambda xs: jnp.tanh(fn(xs[k], axis=axis, keepdims=keep))

    def prefix(self, types: Types) -> Step | None:
        k = self.pick(types, is_float, 1)
        if k is None:
            return None
        axis = self.random.randrange(len(types[k].shape))
        fn = self.random.choice(PREFIXES)
        kind = self.random.choice(["plain", "plain", "reversed", "argsort", "associative"])
        if kind == "argsort":
            return lambda xs: jnp.argsort(xs[k], axis=axis)
        if kind == "associative":
            return lambda xs: lax.associative_scan(lambda a, b: a * 0.5 + b * 0.5, xs[k], axis=axis)
        if kind == "reversed" and fn in (lax.cummax, lax.cummin, lax.cumlogsumexp):
            return lambda xs: jnp.tanh(fn(xs[k], axis, reverse=True))
        return lambda xs: jnp.tanh(fn(xs[k], axis=axis))

    def dot(self, types: Types) -> Step | None:
        def fits(a: Any, b: Any) -> bool:
            return is_float(a) and is_float(b) and len(a.shape) == 2 and b.shape[:1] == a.shape[1:]

        pairs = [(a, b) for a, s in enumerate(types) for b, t in enumerate(types) if fits(s, t)]
        kind = self.random.choice(["matmul", "outer", "einsum"])
        if kind == "matmul" and pairs:
            a, b = self.random.choice(pairs)
            return lambda xs: jnp.tanh(jnp.tensordot(xs[a], xs[b], 1))
        if kind == "einsum":
            k = self.pick(types, lambda t: is_float(t) and len(t.shape) == 3)
            return None if k is None else lambda xs: jnp.tanh(jnp.einsum("bij,bkj->bik", xs[k], xs[k]))
        a, b = (self.pick(types, lambda t: is_float(t) and len(t.shape) == 1) for _ in range(2))
        return None if a is None or b is None else lambda xs: jnp.tanh(jnp.outer(xs[a], xs[b]))

    def complex(self, types: Types) -> Step | None:
        k = self.pick(types, lambda t: t.dtype in (jnp.float32, jnp.float64))
        fn = self.random.choice(COMPLEX)
        return None if k is None else lambda xs: jnp.tanh(fn(lax.complex(xs[k], jnp.cos(xs[k]))))

    def vector(self, types: Types) -> Step | None:
        k = self.pick(types, lambda t: is_float(t) and len(t.shape) == 1)
        fn = self.random.choice(VECTOR)
        return None if k is None else lambda xs: fn(xs[k])

    def matrix(self, types: Types) -> Step | None:
        def square(t: Any) -> bool:
            return t.dtype in (jnp.float32, jnp.float64) and len(t.shape) == 2 and t.shape[0] == t.shape[1]

        k = self.pick(types, square)
        fn = self.random.choice(MATRIX)
        return None if k is None else lambda xs: jnp.tanh(fn(jnp.tanh(xs[k]) * 0.3 + 2 * jnp.eye(types[k].shape[0])))

    def move(self, types: Types) -> Step | None:
        k = self.pick(types, lambda t: not is_key(t), 1)
        if k is None:
            return None
        shape = types[k].shape
        d = self.random.randrange(len(shape))
        order = self.random.sample(range(len(shape)), len(shape))
        start, stride = self.random.randrange(shape[d]), self.random.choice((1, 1, 2))
        first = self.random.choice([f for f in (1, 2, 3) if int(np.prod(shape)) % f == 0])
        moves: list[Callable[[Any], Any]] = [
            lambda x: x.transpose(order),
            lambda x: x.reshape(first, -1),
            lambda x: jnp.flip(x, d),
            lambda x: jnp.roll(x, start + 1, d),
            lambda x: lax.slice_in_dim(x, start, shape[d], stride, d),
            lambda x: jnp.concatenate([x, x[::-1]], d),
            lambda x: jnp.expand_dims(x, d),
            lambda x: jnp.stack([x, x], d),
            lambda x: jnp.repeat(x, 2, d),
            lambda x: jnp.pad(x, [(1, stride) if e == d else (0, 0) for e in range(x.ndim)]),
            lambda x: jnp.broadcast_to(x, (2, *shape)),
            lambda x: jnp.tril(x) if x.ndim == 2 else x[..., None],
        ]
        fn = self.random.choice(moves)
        return lambda xs: fn(xs[k])

    def gather(self, types: Types) -> Step | None:
        k, j = self.pick(types, lambda t: not is_key(t), 1), self.pick(types, is_number)
        if k is None or j is None:
            return None
        d = self.random.randrange(len(types[k].shape))
        index = np.array([self.random.randint(-4, 4) for _ in range(self.random.choice((1, 2, 5)))], np.int32)
        mode = self.random.choice(["clip", "fill", "wrap"])
        kind = self.random.choice(["take", "take", "slice", "along", "one"])

        def fn(xs: Sequence[Any]) -> Any:
            x, at = xs[k], convert(jnp.ravel(xs[j])[0], jnp.int32)
            match kind:
                case "take":
                    got = jnp.take(x, index + at, d, mode=mode)
                    return jnp.nan_to_num(got) if is_float(got) else got
                case "slice":
                    return lax.dynamic_slice_in_dim(x, at, 1, d)
                case "along":
                    return jnp.take_along_axis(x, (jnp.argsort(x, d) + at) % x.shape[d], d)
            return x[at % x.shape[0]]

        return fn

    def update(self, types: Types) -> Step | None:
        k, j = self.pick(types, is_number, 1), self.pick(types, is_number)
        if k is None or j is None:
            return None
        how = self.random.choice(["set", "add", "max", "multiply", "window", "row", "scatter"])
        index = np.array([self.random.randint(-2, 4) for _ in range(3)], np.int32)

        def fn(xs: Sequence[Any]) -> Any:
            x, at = xs[k], convert(jnp.ravel(xs[j])[-1], jnp.int32)
            item = convert(jnp.ravel(xs[j])[0], x.dtype)
            match how:
                case "window":
                    return lax.dynamic_update_slice_in_dim(x, jnp.flip(x[:1]), at, 0)
                case "row":
                    return x.at[..., 0].set(item)
                case "scatter":
                    got = x.at[index + at].add(item)
                case _:
                    got = getattr(x.at[at], how)(item)
            return jnp.tanh(got) if is_float(x) else got

        return fn

    def noise(self, types: Types) -> Step | None:
        k, j = self.pick(types, is_key), self.pick(types, is_whole)
        if k is None:
            return None
        shape = self.random.choice([(), (3,), (2, 2)])
        draws: list[Callable[[Any], Any]] = [
            lambda key: R.uniform(key, shape, minval=-1),
            lambda key: jnp.tanh(R.normal(key, shape)),
            lambda key: R.randint(key, shape, -3, 9),
            lambda key: R.bernoulli(key, 0.4, shape),
            lambda key: R.bits(key, shape),
            lambda key: R.permutation(key, 4),
            lambda key: R.categorical(key, jnp.zeros(3), shape=shape),
            lambda key: jnp.tanh(R.exponential(key, shape)),
        ]
        fn = self.random.choice(draws)
        fold = j is not None and self.random.random() < 0.5

        def of(xs: Sequence[Any]) -> Any:
            key = xs[k]
            return fn(R.fold_in(key, jnp.ravel(xs[j])[0].astype(jnp.uint32)) if fold else key)

        return of

    def split(self, types: Types) -> Step | None:
        k, at = self.pick(types, is_key), self.random.randrange(2)
        return None if k is None else lambda xs: R.split(xs[k])[at]
