"""Operators of torch.library that cost little to call: plain tensors go straight to the function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_stacks: list[Callable[[], Any]] = [
    found
    for found in (
        getattr(getattr(torch._C, "_functorch", None), "get_interpreter_stack", None),
        getattr(torch._C, "_len_torch_dispatch_stack", None),
        getattr(torch._C, "_len_torch_function_stack", None),
    )
    if found is not None
]

_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Operator:
    """A function as an operator, for compilers and transforms (``library``), and for everyone else as it is.

    torch.library's dispatch takes about as long as a small kernel; where no transform, compiler or mode is at work and
    all tensors are plain, the function is called by itself, inside an autograd.Function if something needs a gradient.
    """

    def __init__(self, name: str, function: Callable[..., Any]):
        self.function, self.name = function, name.partition("::")[2]
        self.library = torch.library.custom_op(name, function, mutates_args=())
        self.register_fake = self.library.register_fake
        self.register_vmap = self.library.register_vmap
        self._direct: Any = None

    def register_autograd(self, backward: Callable[..., Any], setup_context: Callable[..., Any]) -> None:
        """As torch.library's."""
        self.library.register_autograd(backward, setup_context=setup_context)

        def forward(ctx: Any, *args: Any) -> Any:
            # Not by a setup_context of its own, for which PyTorch would inspect the signature at every call.
            output = self.function(*args)
            setup_context(ctx, args, output)
            return output

        body = {"forward": forward, "backward": backward}
        self._direct = type(self.name, (torch.autograd.Function,), {k: staticmethod(f) for k, f in body.items()})

    def __call__(self, *args: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.library(*args)
        for stack in _stacks:
            if stack():
                return self.library(*args)
        wanted = False
        for a in args:
            if type(a) in _PLAIN:
                wanted = wanted or a.requires_grad
            elif isinstance(a, torch.Tensor):
                return self.library(*args)
        return self._direct.apply(*args) if wanted and torch.is_grad_enabled() else self.function(*args)


def operator(name: str) -> Callable[[Callable[..., Any]], Operator]:
    """Decorator: the function as the operator of that name; it must not return or change its arguments."""
    return lambda function: Operator(name, function)
