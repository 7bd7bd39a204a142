"""Random nests of scan, while, fori and cond over random steps, then derivatives and batches of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import onelaunch
from random_steps import Step, Steps, Types, fit, is_float, is_key

LARGEST = 60  # elements of a value
EXTENTS = (1, 2, 3, 3, 5)
Fn = Callable[..., Any]


class Maker(Steps):
    """Draws whole programs. ``reverse``: only loops that JAX can differentiate backwards."""

    def __init__(self, source: random.Random, reverse: bool):
        super().__init__(source)
        self.reverse = reverse

    def program(self) -> tuple[Fn, list[Any]]:
        """A function and arguments: a float array first, then a few of any kind, at times a typed key."""
        args = [self.array(np.float32), *(self.array(None) for _ in range(self.random.randint(0, 2)))]
        if self.random.random() < 0.4:
            args.append(jax.random.key(self.random.randrange(99)))
        types = [jax.eval_shape(lambda x: x, a) for a in args]
        steps, known = self.steps(types, self.random.randint(2, 6), depth=2)
        results = self.random.sample(range(len(known)), min(len(known), self.random.randint(1, 3)))

        def fn(*xs: Any) -> Any:
            made = follow(steps, xs)
            return {"picked": [made[k] for k in results], "last": (made[-1], summary(made))}

        return fn, args

    def array(self, dtype: Any) -> Any:
        shape = tuple(self.random.choice(EXTENTS) for _ in range(self.random.choice((0, 1, 1, 2, 2, 3))))
        numbers = np.random.default_rng(self.random.randrange(2**31))
        wide = [np.float64, np.int64] if jax.config.jax_enable_x64 else []
        dtype = dtype or self.random.choice([np.float32, np.float16, np.int32, np.uint32, np.int8, np.bool_, *wide])
        if dtype == np.bool_:
            return numbers.random(shape) < 0.5
        if np.issubdtype(dtype, np.integer):
            return numbers.integers(0 if np.issubdtype(dtype, np.unsignedinteger) else -9, 9, shape).astype(dtype)
        return numbers.uniform(-1, 1, shape).astype(dtype)

    def steps(self, types: Types, count: int, depth: int) -> tuple[list[Step], list[Any]]:
        """Steps, and the types of all that is known after them."""
        made, known = [], list(types)
        while len(made) < count:
            step = self.step(known, depth)
            if step is None:
                continue
            try:
                aval = jax.eval_shape(lambda *xs, step=step: step(xs), *known)
            except (TypeError, ValueError, ZeroDivisionError, NotImplementedError):
                continue  # JAX's own refusal: shapes that don't broadcast, a reduction of nothing
            if 0 < aval.size <= LARGEST:
                made.append(step)
                known.append(aval)
        return made, known

    def step(self, types: Types, depth: int) -> Step | None:
        plain = [self.unary, self.unary, self.binary, self.binary, self.test, self.select, self.cast, self.fold]
        plain += [self.prefix, self.dot, self.move, self.gather, self.update, self.noise, self.split]
        plain += [self.complex, self.vector, self.matrix]
        if not depth or self.random.random() < 0.6:
            return self.random.choice(plain)(types)
        nests = [self.fori, self.scan, self.scan, self.cond, self.switch, self.call]
        return self.random.choice(nests if self.reverse else [*nests, self.while_, self.dynamic])(types, depth)

    # --- steps with blocks ------------------------------------------------------------------------------
    def carried(self, types: Types) -> list[int]:
        return sorted(self.random.sample(range(len(types)), min(len(types), self.random.choice((1, 2, 2, 3)))))

    def body(self, types: Types, carried: Sequence[int], depth: int) -> Callable[[Any, Any], list[Any]]:
        """Random steps on all values, then one value for each carry, of its type."""
        steps, known = self.steps(types, self.random.randint(1, 3), depth - 1)
        sources = []
        for c in carried:
            key = is_key(types[c])
            alike = [k for k, t in enumerate(known) if is_key(t) == key and (not key or t.shape == types[c].shape)]
            sources.append(self.random.choice(alike[-3:]))

        def run(xs: Any, carry: Any) -> list[Any]:
            xs = list(xs)
            for c, value in zip(carried, carry, strict=True):
                xs[c] = value
            made = follow(steps, xs)
            return [
                made[s] if is_key(types[c]) else fit(made[s], types[c]) for s, c in zip(sources, carried, strict=True)
            ]

        return run

    def fori(self, types: Types, depth: int) -> Step:
        carried = self.carried(types)
        body, out, trips = (
            self.body(types, carried, depth),
            self.random.randrange(len(carried)),
            self.random.choice((1, 2, 4)),
        )
        return lambda xs: lax.fori_loop(0, trips, lambda _, c: body(xs, c), strong(xs, carried))[out]

    def dynamic(self, types: Types, depth: int) -> Step | None:
        carried, n = self.carried(types), self.pick(types, lambda t: t.dtype == jnp.int32)
        if n is None:
            return None
        body, out = self.body(types, carried, depth), self.random.randrange(len(carried))

        def fn(xs: Any) -> Any:
            trips = jnp.ravel(xs[n])[0] % 4
            return lax.fori_loop(0, trips, lambda _, c: body(xs, c), strong(xs, carried))[out]

        return fn

    def scan(self, types: Types, depth: int) -> Step:
        carried = self.carried(types)
        body, out = self.body(types, carried, depth), self.random.randrange(len(carried))
        stacked = self.pick(types, lambda t: not is_key(t), 1)
        trips, reverse = self.random.choice((1, 2, 4)), self.random.random() < 0.3
        last = self.random.random() < 0.4

        def fn(xs: Any) -> Any:
            given = None if stacked is None else xs[stacked]

            def step(c: Any, x: Any) -> Any:
                inner = list(xs)
                if x is not None:
                    inner[stacked] = jnp.broadcast_to(x, types[stacked].shape).astype(types[stacked].dtype)
                c = body(inner, c)
                return c, c[out]

            carry, ys = lax.scan(step, strong(xs, carried), given, None if given is not None else trips, reverse)
            return carry[out] if last else ys

        return fn

    def while_(self, types: Types, depth: int) -> Step:
        carried = self.carried(types)
        body, out = self.body(types, carried, depth), self.random.randrange(len(carried))
        watched = self.pick(types, is_float)

        def fn(xs: Any) -> Any:
            def test(s: Any) -> Any:
                x = s[1][carried.index(watched)] if watched in carried else xs[watched]
                return (s[0] < 4) & (jnp.mean(x.astype(jnp.float32)) < 0.35)

            return lax.while_loop(test, lambda s: (s[0] + 1, body(xs, s[1])), (0, strong(xs, carried)))[1][out]

        return fn

    def cond(self, types: Types, depth: int) -> Step:
        carried, j = self.carried(types), self.pick(types, lambda t: not is_key(t))
        sides = [self.body(types, carried, depth) for _ in range(2)]
        out = self.random.randrange(len(carried))

        def fn(xs: Any) -> Any:
            test = jnp.ravel(xs[j])[0] > (0.07 if is_float(types[j]) else 0)
            return lax.cond(test, *(lambda c, side=side: side(xs, c) for side in sides), strong(xs, carried))[out]

        return fn

    def switch(self, types: Types, depth: int) -> Step | None:
        carried, j = self.carried(types), self.pick(types, lambda t: t.dtype == jnp.int32)
        if j is None:
            return None
        sides = [self.body(types, carried, depth) for _ in range(3)]
        out = self.random.randrange(len(carried))

        def fn(xs: Any) -> Any:
            branches = [lambda c, side=side: side(xs, c) for side in sides]
            return lax.switch(jnp.ravel(xs[j])[0], branches, strong(xs, carried))[out]

        return fn

    def call(self, types: Types, depth: int) -> Step:
        """Steps as a call of some kind."""
        carried = self.carried(types)
        body, out = self.body(types, carried, depth), self.random.randrange(len(carried))
        wrap = self.random.choice([jax.jit, jax.checkpoint, onelaunch.fuse, jax.vmap])

        def fn(xs: Any) -> Any:
            inner = lambda *xs: body(xs, [xs[c] for c in carried])[out]  # noqa: E731
            if wrap is jax.vmap:
                return jax.vmap(inner)(*jax.tree.map(lambda x: jnp.stack([x, x]), list(xs)))
            return wrap(inner)(*xs)

        return fn


def follow(steps: Sequence[Step], xs: Sequence[Any]) -> list[Any]:
    made = list(xs)
    for step in steps:
        made.append(step(made))
    return made


def strong(xs: Any, carried: Sequence[int]) -> list[Any]:
    """Carries without weak types."""
    return [xs[c] if is_key(xs[c]) else lax.convert_element_type(xs[c], xs[c].dtype) for c in carried]


def summary(made: Sequence[Any]) -> Any:
    """A float that depends on every float, so that every program has a derivative."""
    floats = [jnp.mean(x.astype(jnp.float32)) for x in made if is_float(x)]
    return jnp.tanh(sum(floats))


# --- what is done to a program --------------------------------------------------------------------------


def floats_of(args: Sequence[Any]) -> list[int]:
    return [k for k, a in enumerate(args) if is_float(jax.eval_shape(lambda x: x, a))]


def smooth(fn: Fn, args: Sequence[Any]) -> tuple[Fn, list[Any]]:
    """The float results as a function of the float arguments, the others held, and those arguments."""
    at = floats_of(args)

    def of(*moved: Any) -> list[Any]:
        xs = list(args)
        for k, x in zip(at, moved, strict=True):
            xs[k] = x
        return [y for y in jax.tree.leaves(fn(*xs)) if is_float(y)]

    return of, [jnp.asarray(args[k]) for k in at]


def pushed(fn: Fn) -> Fn:
    def of(*args: Any) -> Any:
        f, xs = smooth(fn, args)
        return jax.jvp(f, xs, [jnp.cos(x) for x in xs])

    return of


def linear(fn: Fn) -> Fn:
    def of(*args: Any) -> Any:
        f, xs = smooth(fn, args)
        ys, push = jax.linearize(f, *xs)
        return ys, push(*(jnp.cos(x) for x in xs))

    return of


def pulled(fn: Fn) -> Fn:
    def of(*args: Any) -> Any:
        f, xs = smooth(fn, args)
        ys, pull = jax.vjp(f, *xs)
        return ys, pull([jnp.cos(y) for y in ys])

    return of


def mapped(fn: Fn) -> Fn:
    """Over a batch of three, the second argument unbatched."""

    def of(*args: Any) -> Any:
        axes = [None if k == 1 else 0 for k in range(len(args))]
        stacked = [a if k == 1 else jnp.stack([a, jnp.flip(a) if a.ndim else a, a]) for k, a in enumerate(args)]
        return jax.vmap(fn, axes)(*stacked)

    return lambda *args: of(*map(jnp.asarray, args))


#: what is done, and whether it runs loops backwards
DONE: dict[str, tuple[Callable[[Fn], Fn], bool]] = {
    "itself": (lambda f: f, False),
    "jvp": (pushed, False),
    "vjp": (pulled, True),
    "vmap": (mapped, False),
    "vjp of vmap": (lambda f: pulled(mapped(f)), True),
    "vmap of vjp": (lambda f: mapped(pulled(f)), True),
    "linearize": (linear, False),
    "vjp of checkpoint": (lambda f: pulled(jax.checkpoint(f)), True),
    "jvp of vjp": (lambda f: pushed(pulled(f)), True),
}


@dataclass(frozen=True)
class Case:
    """A program: what jax.jit is asked, and the same through ``fuse``, taken around or inside."""

    name: str
    plain: Fn
    fused: Fn
    args: list[Any]
    x64: bool


def case(source: random.Random) -> Case:
    """A random program, one of the transformations of it, around ``fuse`` or inside."""
    x64 = source.random() < 0.2
    done = source.choice(list(DONE))
    transform, reverse = DONE[done]
    around = source.random() < 0.6
    with jax.enable_x64(x64):
        fn, args = Maker(source, reverse).program()
        return Case(
            f"{done}{' around' if around else ''}{', x64' if x64 else ''}",
            transform(fn),
            transform(onelaunch.fuse(fn)) if around else onelaunch.fuse(transform(fn)),
            args,
            x64,
        )
