"""Logits that are not made until somebody looks: what a patched model's head returns in training.

A model scales them, caps them, slices them and hands them to its loss; all that is written down. The loss is then
``linear_cross_entropy`` of the head's input. Whatever else is asked of them makes them, and is done with the tensor.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from onelaunch.torch.linear import linear_cross_entropy
from onelaunch.torch.reducing import legacy


@dataclass(frozen=True, eq=False)
class DeferredLogits:
    """``post * tanh(pre * z)`` (without ``post``: ``pre * z``) of ``z = hidden @ weight.T + bias``, in ``dtype``.

    ``kind`` is the dtype of the product: autocast's, or the operands' own.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    kind: torch.dtype
    dtype: torch.dtype
    pre: float = 1.0
    post: float | None = None

    # --- what is known without making them

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.hidden.shape[:-1], self.weight.shape[0]))

    @property
    def ndim(self) -> int:
        return self.hidden.ndim

    @property
    def device(self) -> torch.device:
        return self.hidden.device

    @property
    def requires_grad(self) -> bool:
        return any(t is not None and t.requires_grad for t in (self.hidden, self.weight, self.bias))

    def dim(self) -> int:
        return self.ndim

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        return math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tensor())

    def __repr__(self) -> str:
        return f"DeferredLogits(shape={list(self.shape)}, dtype={self.dtype})"

    # --- what is written down

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, (int, float)) and other > 0:
            return replace(self, pre=self.pre * other) if self.post is None else replace(self, post=self.post * other)
        return self.tensor() * made(other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        if isinstance(other, (int, float)) and other > 0:
            return replace(self, pre=self.pre / other) if self.post is None else replace(self, post=self.post / other)
        return self.tensor() / made(other)

    mul, div = __mul__, __truediv__

    def tanh(self) -> Any:
        return replace(self, post=1.0) if self.post is None else self.tensor().tanh()

    def to(self, *args: Any, **options: Any) -> Any:
        """A float dtype of at most 32 bits is noted; the loss is f32 in any case."""
        kind = args[0] if len(args) == 1 and not options else None
        if isinstance(kind, torch.device) and kind == self.device:
            return self
        if isinstance(kind, torch.dtype) and kind.is_floating_point and kind.itemsize <= 4:
            return replace(self, dtype=kind)
        return self.tensor().to(*args, **options)

    def float(self) -> Any:
        return self.to(torch.float32)

    def contiguous(self) -> DeferredLogits:
        return self

    def detach(self) -> DeferredLogits:
        bias = None if self.bias is None else self.bias.detach()
        return replace(self, hidden=self.hidden.detach(), weight=self.weight.detach(), bias=bias)

    def reshape(self, *shape: Any) -> Any:
        sizes = list(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else list(shape)
        if sizes and sizes[-1] == self.weight.shape[0]:
            return replace(self, hidden=self.hidden.reshape(*sizes[:-1], self.hidden.shape[-1]))
        return self.tensor().reshape(*shape)

    view = reshape

    def __getitem__(self, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        plain = all(isinstance(p, slice) or p is Ellipsis for p in parts)
        full = len(parts) == self.ndim or Ellipsis in parts
        if plain and (not full or parts[-1] == slice(None)):
            return replace(self, hidden=self.hidden[index])
        return self.tensor()[made(index)]

    # --- what makes them

    def tensor(self) -> Tensor:
        """The logits, by PyTorch's operations; differentiable."""
        bias = None if self.bias is None else self.bias.to(self.kind)
        z = functional.linear(self.hidden.to(self.kind), self.weight.to(self.kind), bias)
        if self.pre != 1.0:
            z = z * self.pre
        if self.post is not None:
            z = torch.tanh(z) * self.post
        return z.to(self.dtype)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.tensor(), name)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        known = _KNOWN.get(func)
        if known is not None and args and isinstance(args[0], cls):
            return known(*args, **options)
        if func is functional.cross_entropy:
            return _cross_entropy(*args, **options)
        return func(*made(args), **made(options))

    # --- the loss

    def loss(self, target: Tensor, **options: Any) -> Tensor:
        """``linear_cross_entropy``; options as there, but for scale and cap."""
        scale, cap = self.pre, None
        if self.post is not None:
            cap = self.post
            scale = self.pre * cap
            scale = 1.0 if math.isclose(scale, 1.0, rel_tol=1e-12) else scale  # the usual z / cap, tanh, * cap
        with torch.autocast(self.device.type, self.kind, enabled=self.kind != self.weight.dtype):
            found: Tensor = linear_cross_entropy(
                self.hidden, self.weight, target, self.bias, logit_scale=scale, softcap=cap, **options
            )
        return found


def made(value: Any) -> Any:
    """The value with tensors in the place of deferred logits; looks into tuples, lists and dicts."""
    if isinstance(value, DeferredLogits):
        return value.tensor()
    if type(value) in (tuple, list):
        return type(value)(made(v) for v in value)
    if type(value) is dict:
        return {k: made(v) for k, v in value.items()}
    return value


def _cross_entropy(
    input: Any, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None,
    ignore_index: int = -100, reduce: bool | None = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """torch.nn.functional.cross_entropy of deferred logits: with its value also where no row counts (NaN)."""
    how = legacy(size_average, reduce, reduction)
    if not isinstance(input, DeferredLogits) or input.ndim > 2:
        # Classes in the second dimension are not the last; or it is the target that is deferred.
        return functional.cross_entropy(made(input), made(target), weight, ignore_index=ignore_index, reduction=how,
                                        label_smoothing=label_smoothing)  # fmt: skip
    return input.loss(target, class_weight=weight, ignore_index=ignore_index, reduction=how,
                      label_smoothing=label_smoothing, empty_mean="nan")  # fmt: skip


_KNOWN: dict[Any, Callable[..., Any]] = {
    torch.tanh: DeferredLogits.tanh,
    torch.mul: DeferredLogits.__mul__,
    torch.div: DeferredLogits.__truediv__,
    torch.true_divide: DeferredLogits.__truediv__,
    torch.reshape: DeferredLogits.reshape,
}

_OPERATORS = (
    *("add", "sub", "pow", "matmul", "mod", "floordiv", "lt", "le", "gt", "ge", "eq", "ne", "and_", "or_", "xor"),
    *("neg", "abs", "invert"),
)


def _by_tensor(apply: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: DeferredLogits, *others: Any) -> Any:
        return apply(self.tensor(), *made(others))

    return method


def _reflected(apply: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: DeferredLogits, other: Any) -> Any:
        return apply(made(other), self.tensor())

    return method


for _name in _OPERATORS:
    setattr(DeferredLogits, f"__{_name.rstrip('_')}__", _by_tensor(getattr(operator, _name)))
for _name in ("add", "sub", "truediv", "pow", "matmul"):
    setattr(DeferredLogits, f"__r{_name}__", _reflected(getattr(operator, _name)))
