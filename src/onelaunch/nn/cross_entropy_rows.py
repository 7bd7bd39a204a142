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
from onelaunch.nn.primitive import assemble, bind, front, one_by_one
from onelaunch.nn.softmax import capped


class Parts:
    """What losses and gradients are made of; the classes are the last axis."""

    def __init__(self, options: Loss, axis: int, x: jax.Array, target: jax.Array, weight: Any):
        self.options = options
        self.z = capped(jnp.moveaxis(x, axis, -1), options.scale, options.cap)
        kind, classes = self.z.dtype, self.z.shape[-1]
        w = None if weight is None else weight.astype(kind)
        self.pull: Any = None
        self.hot: Any = None
        self.valid: Any = None
        if options.soft:
            q = jnp.moveaxis(target, axis, -1).astype(kind)
            q = q * (1 - options.smooth) + options.smooth / classes if options.smooth else q
            self.pull = q if w is None else q * w
            return
        self.valid = target != options.ignore
        inside = self.valid & (target >= 0) & (target < classes)
        self.label = jnp.where(inside, target, 0)
        share = jnp.full(target.shape, 1 - options.smooth, kind)
        share = share if w is None else share * w[self.label]
        self.share = jnp.where(inside, share, jnp.where(self.valid, jnp.nan, 0))
        if options.smooth:
            ones = jnp.ones(classes, kind) if w is None else w
            self.pull = jnp.broadcast_to(ones * (options.smooth / classes), self.z.shape)

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

    def gradient(self, push: jax.Array, scale: jax.Array) -> jax.Array:
        """``push softmax(z) - scale (weights of z)``, times dz/dx."""
        rows = jnp.ones(push.shape, bool) if self.valid is None else self.valid
        scale = jnp.where(rows, scale, 0)
        d = push[..., None] * jax.nn.softmax(self.z)
        d = jnp.where(((push == 0) & ~rows)[..., None], 0, d)
        if self.pull is not None:
            d = d - jnp.where(rows[..., None], self.pull * scale[..., None], 0)
        if not self.options.soft:
            hit = jnp.arange(self.z.shape[-1]) == self.label[..., None]
            d = jnp.where(hit, d - jnp.where(rows, self.share * scale, 0)[..., None], d)
        d = d * self.options.scale
        if self.options.cap is not None:
            d = d * (1 - (self.z / self.options.cap) ** 2)
        return d


def by_xla(options: Loss, axis: int, x: Any, target: Any, weight: Any, argmax: bool) -> tuple[Any, Any, Any, Any]:
    """Losses, lse, mass, argmax (of size 0 unless asked for), differentiable by JAX."""
    parts = Parts(options, axis, x, target, weight)
    loss, lse, mass = parts.losses()
    best = parts.z.argmax(-1).astype(jnp.int32) if argmax else jnp.zeros((*loss.shape, 0), jnp.int32)
    return loss, lse, mass, best


def _layout(axis: int, x: Any, target: Any, soft: bool) -> Rows:
    strides = contiguous(x.shape)
    rows = collapse(x.shape, axis, (strides, strides if soft else (0,) * len(x.shape), strides))
    assert rows is not None
    return rows


def _moved(function: Any, arrays: Mapping[str, Any], dims: Mapping[str, Any], size: int) -> list[jax.Array] | None:
    """The function with the batch dimension in front of everything but weights; None where those have one, too."""
    if dims.get("weight") is not None:
        return None
    moved = {n: a if "weight" in n else front(a, dims[n], size) for n, a in arrays.items()}
    return bind(dataclasses.replace(function, axis=function.axis + 1), **moved)


@dataclass(frozen=True)
class Losses:
    """Losses, lse, mass, argmax of all rows (and with ``grad`` the gradient); factors have the rows' shape."""

    options: Loss
    axis: int
    names: tuple[str, ...]
    argmax: bool
    every: bool
    grad: bool
    tile: Any

    def by_xla(
        self, x: Any, target: Any, weight: Any = None, total_weight: Any = None, factor: Any = None, zfactor: Any = None
    ) -> list[jax.Array]:
        found = by_xla(self.options, self.axis, x, target, weight, self.argmax)
        if not self.grad:
            return list(found)
        loss, lse, mass, best = found
        parts = Parts(self.options, self.axis, x, target, weight)
        loss, push = loss * factor, mass * factor
        if self.options.zscale:
            valid = jnp.ones(lse.shape, bool) if parts.valid is None else parts.valid
            z = jnp.where(valid, zfactor * self.options.zscale, 0)
            loss += jnp.where(valid, z * lse * lse, 0)
            push += jnp.where(valid, 2 * z * lse, 0)
        d = parts.gradient(push, factor)
        return [loss, lse, mass, best, jnp.moveaxis(d, -1, self.axis).astype(x.dtype)]

    def kernel(self, shapes: Mapping[str, Any], results: Sequence[Any]) -> Kernel:
        x, loss = shapes["x"], results[0]
        double = loss.dtype == np.dtype("float64")
        rows = _layout(self.axis, x, shapes["target"], self.options.soft)
        options = dataclasses.replace(self.options, zscale=self.options.zscale if self.grad else 0.0)
        call = calls.cross_entropy(rows, options, double, self.every, 1)
        names = ("x", "target", "weight", "total_weight", "factor", "zfactor")
        inputs = {name: shapes.get(name) for name in names}
        grad = results[4] if self.grad else None
        best = results[3] if self.argmax else None
        outputs = {"loss": loss, "lse": results[1], "mass": results[2], "best": best, "grad": grad}
        return assemble(call, inputs, outputs)

    def batched(self, arrays: Any, dims: Any, size: int) -> list[jax.Array]:
        found = _moved(self, arrays, dims, size)
        return one_by_one(self, arrays, dims, size) if found is None else found


@dataclass(frozen=True)
class Gradient:
    """dx from losses' cotangents ``up`` and, where there is one, lse's, ``extra``."""

    options: Loss
    axis: int
    names: tuple[str, ...]
    tile: Any

    def by_xla(
        self, x: Any, target: Any, lse: Any, mass: Any, up: Any, weight: Any = None, extra: Any = None
    ) -> list[jax.Array]:
        parts = Parts(self.options, self.axis, x, target, weight)
        push = mass * up
        push = push if extra is None else push + extra
        d = parts.gradient(push, up)
        return [jnp.moveaxis(d, -1, self.axis).astype(x.dtype)]

    def kernel(self, shapes: Mapping[str, Any], results: Sequence[Any]) -> Kernel:
        double = shapes["lse"].dtype == np.dtype("float64")
        rows = _layout(self.axis, shapes["x"], shapes["target"], self.options.soft)
        call = calls.cross_entropy_backward(rows, self.options, double, 1, 1)
        names = ("x", "target", "weight", "lse", "mass", "up", "extra")
        return assemble(call, {name: shapes.get(name) for name in names}, {"grad": results[0]})

    def batched(self, arrays: Any, dims: Any, size: int) -> list[jax.Array]:
        found = _moved(self, arrays, dims, size)
        return one_by_one(self, arrays, dims, size) if found is None else found
