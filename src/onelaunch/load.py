"""Generated source → Python functions, compiled or interpreted, whichever way Triton was imported.

``triton.jit`` gives compiled or interpreted functions by a switch read at decoration, and Triton's own library
(``tl.sum``, ``tl.sort``) was decorated when Triton was imported. ``mode`` sets the switch and swaps that library for
its counterpart, so that both sorts work in one process.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import linecache
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from onelaunch import store
from onelaunch.errors import BuildError

_LOCK = threading.RLock()
_COUNTERPARTS: dict[tuple[int, bool], tuple[Any, Any]] = {}
_LIBRARIES = ("triton.language", "onelaunch.device")


class Interpreted(InterpretedFunction):
    """An interpreted function that expects ``triton.language`` to be patched already, by the caller of the kernel."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.python(*args, **kwargs)

    @functools.cached_property
    def python(self) -> Callable[..., Any]:
        """The Python function that does the work."""
        function: Callable[..., Any] = self.rewriter.rewrite_ast()
        return function


def load(name: str, source: str, *, interpret: bool) -> ModuleType:
    """The module of a generated source text; its ``@triton.jit`` functions are Interpreted or JITFunctions."""
    with mode(interpret):
        return _execute(name, source, interpret)


@contextmanager
def mode(interpret: bool) -> Iterator[None]:
    """Within it (one thread at a time) Triton, with its own library, interprets or compiles."""
    with _LOCK, triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = interpret
        undo = _swap_libraries(interpret)
        try:
            yield
        finally:
            for owner, name, value in reversed(undo):
                setattr(owner, name, value)


def counterpart(function: Any, interpret: bool) -> Any:
    """The interpreted or the compiled form of a ``@triton.jit`` function; the same object at every call."""
    wanted = Interpreted if interpret else triton.JITFunction
    if isinstance(function, wanted):
        return function
    key = (id(function), interpret)
    if key not in _COUNTERPARTS:
        _COUNTERPARTS[key] = (function, _convert(function, interpret))
    return _COUNTERPARTS[key][1]


def _convert(function: Any, interpret: bool) -> Any:
    if interpret:
        return Interpreted(function.fn)
    if isinstance(function, InterpretedFunction):
        return triton.JITFunction(function.fn, noinline=function.kwargs.get("noinline"))
    return function


def _is_jit(value: Any) -> bool:
    return isinstance(value, (triton.JITFunction, InterpretedFunction))


def _swap_libraries(interpret: bool) -> list[tuple[Any, str, Any]]:
    """Replace every jitted function of the libraries; returns what to set back."""
    undo: list[tuple[Any, str, Any]] = []
    for module in [m for name, m in list(sys.modules.items()) if name.startswith(_LIBRARIES)]:
        for name, value in list(vars(module).items()):
            if _is_jit(value) and (new := counterpart(value, interpret)) is not value:
                undo.append((module, name, value))
                setattr(module, name, new)
    for name, value in list(vars(tl.tensor).items()):
        function = getattr(tl.standard, name, None)
        if not name.startswith("_") and _is_jit(function):
            undo.append((tl.tensor, name, value))
            setattr(tl.tensor, name, _method(function) if interpret else function)
    return undo


def _method(function: Any) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: function(self, *args, **kwargs)


@functools.lru_cache(maxsize=256)
def _execute(name: str, source: str, interpret: bool) -> ModuleType:
    path = _write(name, source)
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    module = ModuleType(f"onelaunch_generated_{Path(path).stem}")
    module.__file__ = path
    try:
        exec(compile(source, path, "exec"), module.__dict__)
    except Exception as error:
        raise BuildError(name, "load", f"{type(error).__name__}: {error}") from error
    for key, value in list(vars(module).items()):
        if _is_jit(value):
            setattr(module, key, counterpart(value, interpret))
    return module


def _write(name: str, source: str) -> str:
    """Path of a file with ``source`` for tools that show it (profilers, debuggers); writing it may fail unnoticed."""
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    path = store.root() / "source" / f"{name}_{digest}.py"
    with contextlib.suppress(OSError):
        if not path.exists() or path.read_text() != source:
            store.write(path, source.encode())
    return str(path)


def arg_names(function: Any) -> list[str]:
    """Argument names of a jitted function."""
    return list(inspect.signature(function.fn).parameters)
