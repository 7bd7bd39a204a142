"""Random programs: a seed makes a function of a few arrays out of loops, branches, moves, reductions and updates."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

EXTENTS = (1, 2, 3, 4, 7, 9, 12, 17)
Step = Callable[[list[Any]], Any]


class Maker:
    """Draws steps, each from the arrays made so far to one array more; all are float32 and small in magnitude."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)

    def shape(self) -> tuple[int, ...]:
        return tuple(self.random.choice(EXTENTS) for _ in range(self.random.choice((0, 1, 1, 2, 2, 3))))

    def program(self) -> tuple[Callable[..., Any], list[np.ndarray]]:
        shapes = [self.shape() for _ in range(self.random.randint(1, 3))]
        numbers = np.random.default_rng(self.random.randrange(2**31))
        args = [numbers.uniform(-1, 1, s).astype(np.float32) for s in shapes]
        steps, known = self.steps(list(shapes), self.random.randint(2, 7), depth=2)
        results = sorted(self.random.sample(range(len(known)), min(len(known), self.random.randint(1, 3))))

        def fn(*xs: Any) -> Any:
            made = apply(steps, xs)
            return tuple(made[k] for k in [*results, len(made) - 1])

        return fn, args

    def steps(self, shapes: list[tuple[int, ...]], count: int, depth: int) -> tuple[list[Step], list[tuple[int, ...]]]:
        steps = []
        for _ in range(count):
            step, shape = self.step(shapes, depth)
            steps.append(step)
            shapes = [*shapes, shape]
        return steps, shapes

    def step(self, shapes: list[tuple[int, ...]], depth: int) -> tuple[Step, tuple[int, ...]]:
        kinds: list[Any] = [
            self.unary,
            self.binary,
            self.reduce,
            self.move,
            self.gather,
            self.update,
            self.prefix,
            self.dot,
        ]
        if depth:
            kinds += [self.fori, self.fori, self.scan, self.cond, self.while_]
        while True:
            made = self.random.choice(kinds)(shapes, depth)
            if made is not None:
                return made

    # --- steps without blocks ---------------------------------------------------------------------------
    def pick(self, shapes: Sequence[tuple[int, ...]], least: int = 0) -> int | None:
        found = [k for k, s in enumerate(shapes) if len(s) >= least]
        return self.random.choice(found) if found else None

    def unary(self, shapes: Any, depth: int) -> Any:
        k = self.pick(shapes)
        fn = self.random.choice(
            [jnp.sin, jnp.tanh, lambda x: -x, lambda x: x * 0.5 + 0.25, lambda x: jnp.where(x > 0.1, x, 0.5)]
        )
        return (lambda xs: fn(xs[k])), shapes[k]

    def binary(self, shapes: Any, depth: int) -> Any:
        a = self.pick(shapes)
        partners = [k for k, s in enumerate(shapes) if broadcast(s, shapes[a]) is not None]
        b = self.random.choice(partners)
        fn = self.random.choice(
            [jnp.add, jnp.subtract, jnp.multiply, jnp.maximum, lambda x, y: jnp.where(x < y, x, y * 0.5)]
        )
        return (lambda xs: jnp.tanh(fn(xs[a], xs[b]))), broadcast(shapes[a], shapes[b])

    def reduce(self, shapes: Any, depth: int) -> Any:
        k = self.pick(shapes, 1)
        if k is None:
            return None
        axis = self.random.choice([None, *range(len(shapes[k]))])
        fn = self.random.choice([jnp.mean, jnp.max, jnp.min, lambda x, a: jnp.argmax(x, a) * jnp.float32(0.1)])
        shape = () if axis is None else tuple(s for d, s in enumerate(shapes[k]) if d != axis)
        return (lambda xs: fn(xs[k], axis)), shape

    def prefix(self, shapes: Any, depth: int) -> Any:
        k = self.pick(shapes, 1)
        if k is None:
            return None
        axis = self.random.randrange(len(shapes[k]))
        fn = self.random.choice(
            [
                lambda x: jnp.tanh(jnp.cumsum(x, axis)),
                lambda x: lax.cummax(x, axis, reverse=True),
                lambda x: jnp.sort(x, axis),
            ]
        )
        return (lambda xs: fn(xs[k])), shapes[k]

    def dot(self, shapes: Any, depth: int) -> Any:
        pairs = [
            (a, b)
            for a, s in enumerate(shapes)
            for b, t in enumerate(shapes)
            if len(s) == 2 and t and t[0] == s[1] and len(t) < 3
        ]
        if not pairs:
            return None
        a, b = self.random.choice(pairs)
        return (lambda xs: jnp.tanh(xs[a] @ xs[b])), (shapes[a][0], *shapes[b][1:])

    def move(self, shapes: Any, depth: int) -> Any:
        k = self.pick(shapes, 1)
        if k is None:
            return None
        shape = shapes[k]
        d = self.random.randrange(len(shape))
        kind = self.random.choice(
            ["transpose", "flatten", "flip", "slice", "pad", "concatenate", "split", "expand", "roll"]
        )
        match kind:
            case "transpose":
                order = list(range(len(shape)))
                self.random.shuffle(order)
                return (lambda xs: xs[k].transpose(order)), tuple(shape[o] for o in order)
            case "flatten":
                return (lambda xs: xs[k].reshape(-1)), (int(np.prod(shape)),)
            case "flip":
                return (lambda xs: jnp.flip(xs[k], d)), shape
            case "roll":
                return (lambda xs: jnp.roll(xs[k], 1, d)), shape
            case "slice":
                start = self.random.randrange(shape[d])
                stride = self.random.choice((1, 1, 2))
                count = -(-(shape[d] - start) // stride)
                return (lambda xs: lax.slice_in_dim(xs[k], start, shape[d], stride, d)), (
                    *shape[:d],
                    count,
                    *shape[d + 1 :],
                )
            case "pad":
                if shape[d] > 9:
                    return None
                widths = [(2, 1) if e == d else (0, 0) for e in range(len(shape))]
                return (lambda xs: jnp.pad(xs[k], widths, constant_values=0.5)), (
                    *shape[:d],
                    shape[d] + 3,
                    *shape[d + 1 :],
                )
            case "concatenate":
                if shape[d] > 9:
                    return None
                return (lambda xs: jnp.concatenate([xs[k], xs[k] * 0.5], d)), (
                    *shape[:d],
                    2 * shape[d],
                    *shape[d + 1 :],
                )
            case "split":
                size = int(np.prod(shape))
                first = self.random.choice([f for f in (1, 2, 3, 4, 6) if size % f == 0])
                return (lambda xs: xs[k].reshape(first, size // first)), (first, size // first)
            case _:
                return ((lambda xs: jnp.expand_dims(xs[k], d)), (*shape[:d], 1, *shape[d:])) if len(shape) < 3 else None

    def gather(self, shapes: Any, depth: int) -> Any:
        k = self.pick(shapes, 1)
        if k is None:
            return None
        shape = shapes[k]
        d = self.random.randrange(len(shape))
        count = self.random.choice((1, 2, 5, 11))
        index = (
            np.random.default_rng(self.random.randrange(99))
            .integers(-shape[d] - 1, shape[d] + 1, count)
            .astype(np.int32)
        )
        j = self.pick(shapes)

        def fn(xs: Any) -> Any:
            shift = (jnp.max(xs[j]) * 3).astype(jnp.int32)
            return jnp.take(xs[k], index + shift, d, mode="clip")

        return fn, (*shape[:d], count, *shape[d + 1 :])

    def update(self, shapes: Any, depth: int) -> Any:
        k = self.pick(shapes, 1)
        if k is None:
            return None
        shape = shapes[k]
        j = self.pick(shapes)
        how = self.random.choice(["set", "add", "max", "window", "row", "scatter"])
        numbers = np.random.default_rng(self.random.randrange(99)).integers(-1, shape[0] + 1, 4).astype(np.int32)

        def fn(xs: Any) -> Any:
            x, at = xs[k], (jnp.max(xs[j]) * 5).astype(jnp.int32)
            match how:
                case "window":
                    return lax.dynamic_update_slice(x, x[:1] * 0.5, (at, *[jnp.int32(0)] * (x.ndim - 1)))
                case "row":
                    return x.at[..., 0].set(0.25)
                case "scatter":
                    return jnp.tanh(x.at[numbers + at].add(0.5))
                case _:
                    return getattr(x.at[at], how)(jnp.float32(0.125))

        return fn, shape

    # --- steps with blocks ------------------------------------------------------------------------------
    def body(self, shapes: Any, carried: Sequence[int], depth: int) -> Callable[[list[Any], list[Any]], list[Any]]:
        """Random steps on all arrays, then one array of each carry's shape; sometimes carries are swapped."""
        steps, known = self.steps(list(shapes), self.random.randint(1, 3), depth - 1)
        sources = [self.random.choice([k for k in range(len(known)) if known[k] == shapes[c]]) for c in carried]

        def run(xs: list[Any], carry: list[Any]) -> list[Any]:
            xs = list(xs)
            for c, value in zip(carried, carry, strict=True):
                xs[c] = value
            made = apply(steps, xs)
            return [made[s] for s in sources]

        return run

    def carried(self, shapes: Any) -> list[int]:
        return sorted(self.random.sample(range(len(shapes)), min(len(shapes), self.random.choice((1, 2, 2, 3)))))

    def fori(self, shapes: Any, depth: int) -> Any:
        carried = self.carried(shapes)
        body, out, trips = (
            self.body(shapes, carried, depth),
            self.random.randrange(len(carried)),
            self.random.choice((2, 3, 5)),
        )
        return (lambda xs: lax.fori_loop(0, trips, lambda _, c: body(xs, c), [xs[c] for c in carried])[out]), shapes[
            carried[out]
        ]

    def scan(self, shapes: Any, depth: int) -> Any:
        carried = self.carried(shapes)
        body, out, trips = (
            self.body(shapes, carried, depth),
            self.random.randrange(len(carried)),
            self.random.choice((2, 4)),
        )
        if len(shapes[carried[out]]) > 2:
            return None

        def fn(xs: Any) -> Any:
            def step(c: Any, _: Any) -> Any:
                new = body(xs, c)
                return new, new[out]

            return lax.scan(step, [xs[c] for c in carried], None, length=trips)[1]

        return fn, (trips, *shapes[carried[out]])

    def while_(self, shapes: Any, depth: int) -> Any:
        carried = self.carried(shapes)
        body, out, limit = (
            self.body(shapes, carried, depth),
            self.random.randrange(len(carried)),
            self.random.choice((0.3, 0.9)),
        )

        def fn(xs: Any) -> Any:
            test = lambda s: (s[0] < 4) & (jnp.mean(s[1][0]) < limit)  # noqa: E731
            return lax.while_loop(test, lambda s: (s[0] + 1, body(xs, s[1])), (0, [xs[c] for c in carried]))[1][out]

        return fn, shapes[carried[out]]

    def cond(self, shapes: Any, depth: int) -> Any:
        carried = self.carried(shapes)
        sides = [self.body(shapes, carried, depth) for _ in range(2)]
        j, out = self.pick(shapes), self.random.randrange(len(carried))

        def fn(xs: Any) -> Any:
            start = [xs[c] for c in carried]
            return lax.cond(jnp.mean(xs[j]) > 0.1, *(lambda c, side=side: side(xs, c) for side in sides), start)[out]

        return fn, shapes[carried[out]]


def apply(steps: Sequence[Step], xs: Sequence[Any]) -> list[Any]:
    made = list(xs)
    for step in steps:
        made.append(step(made))
    return made


def broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(a, b)
    except ValueError:
        return None
