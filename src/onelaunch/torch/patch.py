"""patch(model): a language model whose head and loss become linear_cross_entropy in training, by one line.

The model's class and its head's are exchanged for subclasses; no weight and no other module is touched, and
``unpatch`` exchanges them back. While the model's forward has labels and makes gradients, its head returns
``DeferredLogits``.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from onelaunch.torch.cross_entropy import cross_entropy
from onelaunch.torch.deferred import DeferredLogits


class _Running(threading.local):
    """The heads that are to defer, of the forwards that are running."""

    def __init__(self) -> None:
        self.heads: list[nn.Module] = []


_running = _Running()


class DeferringLinear(nn.Linear):
    """The class of a patched model's head: an ``nn.Linear`` but for the logits it defers."""

    def forward(self, input: Tensor) -> Any:
        if not any(head is self for head in _running.heads) or not _plain(self.weight):
            return super().forward(input)
        device = input.device.type
        kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else input.dtype
        return DeferredLogits(input, self.weight, self.bias, kind, kind)


def _plain(weight: Tensor) -> bool:
    """Whether the weight is here after the head's own forward: neither distributed, nor DeepSpeed's shard."""
    return type(weight) in (Tensor, nn.Parameter) and not hasattr(weight, "ds_id")


class Patched:
    """Mixed into the class of a patched model."""

    onelaunch_original: ClassVar[type[nn.Module]]
    onelaunch_loss: ClassVar[str]
    onelaunch_head: ClassVar[str]
    onelaunch_labels: ClassVar[int]

    def forward(self, *args: Any, **options: Any) -> Any:
        place = self.onelaunch_labels
        labels = options.get("labels", args[place] if 0 <= place < len(args) else None)
        head = self._modules[self.onelaunch_head]  # type: ignore[attr-defined]
        defer = labels is not None and self.training and torch.is_grad_enabled()  # type: ignore[attr-defined]
        with _deferring(head if defer else None):
            return super().forward(*args, **options)  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles name the model's own class, and are patched too."""
        kind = (self.onelaunch_original, self.onelaunch_loss, self.onelaunch_head, self.onelaunch_labels)
        return _revive, kind, self.__dict__


@contextmanager
def _deferring(head: nn.Module | None) -> Iterator[None]:
    if head is None:
        yield
        return
    _running.heads.append(head)
    try:
        yield
    finally:
        _running.heads.pop()


def causal_lm_loss(
    logits: Any, labels: Tensor, vocab_size: int | None = None, num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100, shift_labels: Tensor | None = None, **ignored: Any,
) -> Tensor:  # fmt: skip
    """The loss of ``transformers``' causal language models: token i is scored against label i + 1.

    logits: (batch, tokens, classes), deferred or not; labels: (batch, tokens), or shift_labels, already moved.
    num_items_in_batch: divide the sum by it instead of taking a mean. Keywords that its own loss ignores are ignored.
    Where no label counts the loss is 0 (theirs: NaN).
    """
    if shift_labels is None:
        shift_labels = functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    return masked_lm_loss(logits, shift_labels, vocab_size, num_items_in_batch, ignore_index)


def masked_lm_loss(
    logits: Any, labels: Tensor, vocab_size: int | None = None, num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100, **ignored: Any,
) -> Tensor:  # fmt: skip
    """The loss of ``transformers``' masked language models: token i is scored against label i."""
    classes = logits.shape[-1]
    if vocab_size is not None and vocab_size != classes:
        raise ValueError(f"logits have {classes} classes, vocab_size is {vocab_size}")
    flat, target = logits.reshape(-1, classes), labels.reshape(-1).to(logits.device)
    if isinstance(flat, DeferredLogits):
        return flat.loss(target, ignore_index=ignore_index, num_items=num_items_in_batch)
    found: Tensor = cross_entropy(flat, target, ignore_index=ignore_index, num_items=num_items_in_batch)
    return found


#: Losses that are replaced, by the names of transformers' functions; others get the deferred logits.
LOSSES: dict[str, Callable[..., Tensor]] = {"ForCausalLMLoss": causal_lm_loss, "ForMaskedLMLoss": masked_lm_loss}


class Patch:
    """What ``patch`` returns; ``undo()``, or leaving it as a context, gives the model its own classes back."""

    def __init__(self, model: nn.Module):
        self.model = model

    def undo(self) -> None:
        unpatch(self.model)

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()


def patch(model: nn.Module, head: nn.Module | None = None) -> Patch:
    """Make a causal or masked language model's loss ``linear_cross_entropy``: in training no logits are held.

    model: a module whose forward takes ``labels``, applies a linear head and computes the loss, as those of
    ``transformers`` do (through ``loss_function``, or ``torch.nn.functional.cross_entropy``); it may be wrapped. head:
    the ``nn.Linear``; found by ``get_output_embeddings()`` or the name ``lm_head`` if not given. Scales and caps that
    the model applies to its logits go into the loss, as do num_items_in_batch, shifted labels and ignore_index.

    ``output.logits`` are made when they are looked at. Nothing is deferred in evaluation, without labels or under
    ``no_grad``; there, the loss is ``cross_entropy``. Call it before the model is compiled or prepared. Raises
    TypeError for a head that is no plain ``nn.Linear``, ValueError where no such model or head is found.
    """
    linear = _head(model) if head is None else head
    if type(linear) is not nn.Linear:
        what = "already patched" if type(linear) is DeferringLinear else f"{type(linear).__name__}, not nn.Linear"
        raise TypeError(f"the head of {type(model).__name__} is {what}")
    owner, name = _owner(model, linear)
    original = type(owner)
    place = _place_of_labels(original)
    if "forward" in vars(owner):
        raise ValueError(f"forward of {original.__name__} was replaced on the object: call patch before that")
    loss = getattr(getattr(owner, "loss_function", None), "__name__", "")
    owner.__class__ = _subclass(original, loss, name, place)  # type: ignore[arg-type]
    linear.__class__ = DeferringLinear
    return Patch(owner)


def unpatch(model: nn.Module) -> None:
    """Undo ``patch``, of this model or of modules inside; ValueError where there is none."""
    found = [m for m in model.modules() if isinstance(m, Patched)]
    if not found:
        raise ValueError(f"{type(model).__name__} is not patched")
    for owner in found:
        owner._modules[owner.onelaunch_head].__class__ = nn.Linear
        owner.__class__ = owner.onelaunch_original  # type: ignore[assignment]


@functools.cache
def _subclass(original: type[nn.Module], loss: str, head: str, labels: int) -> type[nn.Module]:
    """``original`` with Patched mixed in, by its own name."""
    body: dict[str, Any] = {
        **{"onelaunch_original": original, "onelaunch_loss": loss, "onelaunch_head": head, "onelaunch_labels": labels},
        **{"__module__": original.__module__, "__qualname__": original.__qualname__, "__doc__": original.__doc__},
        "forward": _with_signature(original),
    }
    if loss in LOSSES:
        body["loss_function"] = property(lambda self: LOSSES[loss])
    return type(original.__name__, (Patched, original), body)


def _revive(original: type[nn.Module], loss: str, head: str, labels: int) -> nn.Module:
    kind = _subclass(original, loss, head, labels)  # type: ignore[arg-type]
    return kind.__new__(kind)


def _with_signature(original: type[nn.Module]) -> Callable[..., Any]:
    """Patched.forward for callers that read the signature (generation, trainers): the model's own."""

    def forward(self: Any, *args: Any, **options: Any) -> Any:
        return Patched.forward(self, *args, **options)

    forward.__signature__ = inspect.signature(original.forward)  # type: ignore[attr-defined]
    forward.__doc__ = original.forward.__doc__
    return forward


def _head(model: nn.Module) -> nn.Module:
    """The output embedding as the model names it."""
    for inner in model.modules():
        getter: Any = getattr(inner, "get_output_embeddings", None)
        found = getattr(inner, "lm_head", None) if getter is None else getter()
        if isinstance(found, nn.Module):
            return found
    raise ValueError(f"{type(model).__name__} has neither get_output_embeddings() nor lm_head: give head=")


def _owner(model: nn.Module, head: nn.Module) -> tuple[nn.Module, str]:
    """The module that the head is a part of, and the head's name there."""
    for inner in model.modules():
        for name, child in inner.named_children():
            if child is head:
                return inner, name
    raise ValueError(f"the head is no part of {type(model).__name__}")


def _place_of_labels(model: type[nn.Module]) -> int:
    """Where ``labels`` comes among forward's positional arguments, without self."""
    parameters = list(inspect.signature(model.forward).parameters)[1:]
    if "labels" not in parameters:
        raise ValueError(f"forward of {model.__name__} takes no labels")
    return parameters.index("labels")
