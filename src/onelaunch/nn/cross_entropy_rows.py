"""The functions of cross-entropy behind the primitive: losses of rows, with their gradient or without; the gradient."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onelaunch.emit.kernel import Kernel
from onelaunch.kernels import calls
from onelaunch.kernels.calls import Loss
from onelaunch.kernels.layout import Rows, collapse, contiguous
from onelaunch.nn.primitive import assemble, bind, front, machine, one_by_one
from onelaunch.nn.softmax import capped


@dataclass(frozen=True)
class Ask:
    """What is wanted of the rows beside their losses; ``every``: lse of ignored rows, too."""

    argmax: bool = False
    entropy: bool = False
    every: bool = False


class Parts:
    """What losses and gradients are made of; the classes are the last axis."""

    def __init__(self, options: Loss, axis: int, x: jax.Array, target: jax.Array, weight: Any, width: Any = None):
        self.options = options
        self.z = capped(jnp.moveaxis(x, axis, -1), options.scale, options.cap)
        kind, columns = self.z.dtype, self.z.shape[-1]
        self.real: Any = True if width is None else jnp.arange(columns) < width[0]
        self.z = jnp.where(self.real, self.z, -jnp.inf) if width is not None else self.z
        each = options.smooth / (options.part or columns)
        w = None if weight is None else weight.astype(kind)
        self.pull: Any = None
        self.hot: Any = None
        self.valid: Any = None
        if options.soft:
            q = jnp.moveaxis(target, axis, -1).astype(kind)
            q = q * (1 - options.smooth) + each if options.smooth else q
            self.pull = jnp.where(self.real, q if w is None else q * w, 0)
            return
        self.valid = target != options.ignore
        inside = self.valid & (target >= 0) & (target < (columns if width is None else width[0]))
        self.label = jnp.where(inside, target, 0)
        share = jnp.full(target.shape, 1 - options.smooth, kind)
        share = share if w is None else share * w[self.label]
        elsewhere = 0.0 if options.part else jnp.nan
        self.share = jnp.where(inside, share, jnp.where(self.valid, elsewhere, 0))
        if options.smooth:
            ones = jnp.ones(columns, kind) if w is None else w
            self.pull = jnp.broadcast_to(jnp.where(self.real, ones * each, 0), self.z.shape)

    def losses(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Loss, lse and mass (the weight of lse in the loss) of each row."""
        lse = jax.nn.logsumexp(self.z, -1)
        loss = mass = jnp.zeros_like(lse)
        if self.pull is not None:
            none = self.pull == 0
            # A weight of 0 makes no NaN of a score of -inf, but the weight keeps its derivative where there is one.
            safe = jnp.where(none & jnp.isinf(self.z), 0, self.z)
            mass = self.pull.sum(-1)
            loss = mass * jnp.where((mass == 0) & jnp.isinf(lse), 0, lse) - (self.pull * safe).sum(-1)
        if not self.options.soft:
            gap = -jnp.take_along_axis(jax.nn.log_softmax(self.z), self.label[..., None], -1)[..., 0]
            loss = loss + self.share * jnp.where((self.share == 0) & ~jnp.isfinite(gap), 0, gap)
            mass = mass + self.share
            loss, mass = jnp.where(self.valid, loss, 0), jnp.where(self.valid, mass, 0)
        return loss, lse, mass

    def entropy(self) -> jax.Array:
        """Entropy of each row's softmax."""
        log = jax.nn.log_softmax(self.z)
        p = jnp.exp(log)
        found = -(p * jnp.where(p == 0, 0, log)).sum(-1)
        return jnp.where(self._bare(), 0, found) if self.options.part else found

    def _bare(self) -> jax.Array:
        """Rows without a finite score in this part of the classes."""
        return self.z.max(-1) == -jnp.inf

    def gradient(
        self, push: jax.Array, scale: jax.Array, lse: Any = None, entropy: Any = None, bend: Any = None
    ) -> jax.Array:
        """``push p - scale (weights of z) - bend p (z - lse + entropy)``, times dz/dx, where p is softmax(z).

        lse: of all classes, where z is a part of them.
        """
        rows = jnp.ones(push.shape, bool) if self.valid is None else self.valid
        scale = jnp.where(rows, scale, 0)
        p = jax.nn.softmax(self.z)
        if self.options.part and lse is not None:
            p = jnp.exp(self.z - jnp.where(lse == jnp.inf, jnp.nan, lse)[..., None])
            p = jnp.where(self._bare()[..., None], 0, p)
        d = push[..., None] * p
        d = jnp.where(((push == 0) & ~rows)[..., None], 0, d)
        if bend is not None:
            away = jnp.where(p == 0, 0, self.z - lse[..., None] + entropy[..., None])
            d = d - jnp.where((bend == 0)[..., None], 0, p * away * bend[..., None])
        if self.pull is not None:
            d = d - jnp.where(rows[..., None], self.pull * scale[..., None], 0)
        if not self.options.soft:
            hit = jnp.arange(self.z.shape[-1]) == self.label[..., None]
            d = jnp.where(hit, d - jnp.where(rows, self.share * scale, 0)[..., None], d)
        d = d * self.options.scale
        if self.options.cap is not None:
            d = d * (1 - (self.z / self.options.cap) ** 2)
        return d if self.real is True else jnp.where(self.real, d, 0)


def by_xla(options: Loss, ask: Ask, axis: int, x: Any, target: Any, weight: Any, width: Any = None) -> list[Any]:
    """Losses, lse, mass, argmax, its score, entropy (the last three of size 0 unless asked for), differentiable."""
    parts = Parts(options, axis, x, target, weight, width)
    loss, lse, mass = parts.losses()
    none = (*loss.shape, 0)
    best = parts.z.argmax(-1).astype(jnp.int32) if ask.argmax else jnp.zeros(none, jnp.int32)
    peak = parts.z.max(-1) if ask.argmax else jnp.zeros(none, lse.dtype)
    entropy = parts.entropy() if ask.entropy else jnp.zeros(none, lse.dtype)
    return [loss, lse, mass, best, peak, entropy]


def _layout(axis: int, x: Any, target: Any, soft: bool) -> Rows:
    strides = contiguous(x.shape)
    rows = collapse(x.shape, axis, (strides, strides if soft else (0,) * len(x.shape), strides))
    assert rows is not None
    return rows


#: Arrays that all rows share.
SHARED = ("weight", "total_weight", "width")


def _batched(function: Any, arrays: Mapping[str, Any], dims: Mapping[str, Any], size: int) -> list[jax.Array]:
    """The function with the batch dimension in front of what rows have; in a loop where what they share has one."""
    if any(dims.get(name) is not None for name in SHARED):
        return one_by_one(function, arrays, dims, size)
    moved = {n: a if n in SHARED else front(a, dims[n], size) for n, a in arrays.items()}
    return bind(dataclasses.replace(function, axis=function.axis + 1), **moved)


@dataclass(frozen=True)
class Losses:
    """What ``by_xla`` gives of all rows, and with ``grad`` the gradient; factors have the rows' shape."""

    options: Loss
    ask: Ask
    axis: int
    names: tuple[str, ...]
    grad: bool
    tile: Any
    inplace: bool = False

    def by_xla(
        self, x: Any, target: Any, weight: Any = None, total_weight: Any = None, factor: Any = None,
        zfactor: Any = None, width: Any = None,
    ) -> list[jax.Array]:  # fmt: skip
        found = by_xla(self.options, self.ask, self.axis, x, target, weight, width)
        if not self.grad:
            return found
        loss, lse, mass = found[:3]
        parts = Parts(self.options, self.axis, x, target, weight, width)
        loss, push = loss * factor, mass * factor
        if self.options.zscale:
            valid = jnp.ones(lse.shape, bool) if parts.valid is None else parts.valid
            z = jnp.where(valid, zfactor * self.options.zscale, 0)
            loss += jnp.where(valid, z * lse * lse, 0)
            push += jnp.where(valid, 2 * z * lse, 0)
        d = parts.gradient(push, factor)
        return [loss, *found[1:], jnp.moveaxis(d, -1, self.axis).astype(x.dtype)]

    def kernel(self, shapes: Mapping[str, Any], results: Sequence[Any]) -> Kernel:
        x, loss = shapes["x"], results[0]
        double = loss.dtype == np.dtype("float64")
        rows = _layout(self.axis, x, shapes["target"], self.options.soft)
        options = dataclasses.replace(self.options, zscale=self.options.zscale if self.grad else 0.0)
        gradient = None
        if self.grad:
            ask = (self.ask.argmax, self.ask.entropy)
            gradient = calls.Gradient(x.dtype.itemsize, "weight" in shapes, *ask, machine())
        call = calls.cross_entropy(rows, options, double, self.ask.every, 1, "width" in shapes, gradient)
        names = ("x", "target", "weight", "total_weight", "factor", "zfactor", "width")
        outputs = {"loss": loss, "lse": results[1], "mass": results[2]}
        outputs |= dict(zip(("best", "peak"), results[3:5] if self.ask.argmax else (None, None)))
        outputs |= {"entropy": results[5] if self.ask.entropy else None, "grad": results[6] if self.grad else None}
        return assemble(call, {name: shapes.get(name) for name in names}, outputs)

    def batched(self, arrays: Any, dims: Any, size: int) -> list[jax.Array]:
        return _batched(self, arrays, dims, size)


@dataclass(frozen=True)
class Gradient:
    """dx from losses' cotangents ``up`` and, where there are any, lse's, ``extra``, and entropy's, ``bend``."""

    options: Loss
    axis: int
    names: tuple[str, ...]
    tile: Any
    inplace: bool = False

    def by_xla(
        self, x: Any, target: Any, lse: Any, mass: Any, up: Any, weight: Any = None, extra: Any = None,
        width: Any = None, entropy: Any = None, bend: Any = None,
    ) -> list[jax.Array]:  # fmt: skip
        parts = Parts(self.options, self.axis, x, target, weight, width)
        push = mass * up
        push = push if extra is None else push + extra
        d = parts.gradient(push, up, lse, entropy, bend)
        return [jnp.moveaxis(d, -1, self.axis).astype(x.dtype)]

    def kernel(self, shapes: Mapping[str, Any], results: Sequence[Any]) -> Kernel:
        double = shapes["lse"].dtype == np.dtype("float64")
        rows = _layout(self.axis, shapes["x"], shapes["target"], self.options.soft)
        call = calls.cross_entropy_backward(rows, self.options, double, 1, 1, "width" in shapes)
        names = ("x", "target", "weight", "lse", "mass", "up", "extra", "width", "entropy", "bend")
        return assemble(call, {name: shapes.get(name) for name in names}, {"grad": results[0]})

    def batched(self, arrays: Any, dims: Any, size: int) -> list[jax.Array]:
        return _batched(self, arrays, dims, size)
