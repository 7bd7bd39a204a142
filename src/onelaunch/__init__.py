"""onelaunch: a JAX program that XLA runs as thousands of tiny GPU launches runs as one.

``fuse`` and what belongs to it are loaded, with JAX, at first use; the PyTorch face works without JAX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from onelaunch.errors import BuildError, FusionError, OnelaunchError, OptionError, Refusal, Where

if TYPE_CHECKING:
    from onelaunch.api import Lowered, explain, fuse

__version__ = "0.1.0"
__all__ = [
    "BuildError",
    "FusionError",
    "Lowered",
    "OnelaunchError",
    "OptionError",
    "Refusal",
    "Where",
    "explain",
    "fuse",
]


def __getattr__(name: str) -> Any:
    if name in ("fuse", "explain", "Lowered"):
        return getattr(importlib.import_module("onelaunch.api"), name)
    raise AttributeError(f"module 'onelaunch' has no attribute {name!r}")
