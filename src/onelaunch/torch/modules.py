"""Drop-ins for torch.nn's modules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from onelaunch.torch.cross_entropy import cross_entropy
from onelaunch.torch.linear import linear_cross_entropy
from onelaunch.torch.softmax import log_softmax, softmax


class Softmax(nn.Softmax):
    """``torch.nn.Softmax`` whose forward is ``onelaunch.torch.softmax``; ``options`` are its keywords."""

    def __init__(self, dim: int | None = None, **options: Any):
        super().__init__(dim)
        self.options = options

    def forward(self, input: Tensor) -> Tensor:
        return softmax(input, self.dim, **self.options)


class LogSoftmax(nn.LogSoftmax):
    """``torch.nn.LogSoftmax`` whose forward is ``onelaunch.torch.log_softmax``; ``options`` are its keywords."""

    def __init__(self, dim: int | None = None, **options: Any):
        super().__init__(dim)
        self.options = options

    def forward(self, input: Tensor) -> Tensor:
        return log_softmax(input, self.dim, **self.options)


class CrossEntropyLoss(nn.CrossEntropyLoss):
    """``torch.nn.CrossEntropyLoss`` whose forward is ``onelaunch.torch.cross_entropy``; ``options``: its keywords."""

    def __init__(
        self, weight: Tensor | None = None, size_average: bool | None = None, ignore_index: int = -100,
        reduce: bool | None = None, reduction: str = "mean", label_smoothing: float = 0.0, **options: Any,
    ):  # fmt: skip
        super().__init__(weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        self.options = options

    def forward(self, input: Tensor, target: Tensor, num_items: torch.Tensor | float | None = None) -> Any:
        return cross_entropy(
            input, target, self.weight, ignore_index=self.ignore_index, reduction=self.reduction,
            label_smoothing=self.label_smoothing, num_items=num_items, **self.options,
        )  # fmt: skip


class LinearCrossEntropyLoss(nn.Linear):
    """``torch.nn.Linear`` whose forward takes labels too and gives the loss: ``linear_cross_entropy``.

    in_features, out_features (classes), bias, device, dtype as for Linear, and so its state; ``options`` are the
    function's keywords. To share an embedding's weight, assign ``loss.weight = embedding.weight``.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = False, device: Any = None, dtype: Any = None,
                 **options: Any):  # fmt: skip
        super().__init__(in_features, out_features, bias, device, dtype)
        self.options = options

    def forward(self, input: Tensor, target: Tensor, num_items: torch.Tensor | float | None = None) -> Any:  # type: ignore[override]
        return linear_cross_entropy(input, self.weight, target, self.bias, num_items=num_items, **self.options)
