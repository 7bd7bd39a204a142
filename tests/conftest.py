"""What every test gets: its own store, the JAX flags of a fresh process, and skips for what this machine lacks."""

from __future__ import annotations

import gc
import importlib.util
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import jax
import pytest

FLAGS = ("jax_enable_x64", "jax_threefry_partitionable", "jax_default_matmul_precision", "jax_numpy_dtype_promotion")


def pytest_configure() -> None:
    """Collect garbage seldom: what tests leave is mostly caches, and to look through them takes a tenth of the time."""
    gc.set_threshold(100_000, 20, 100)


@cache
def has_gpu() -> bool:
    """Whether JAX sees a GPU (asked once: it initialises the backend)."""
    return any(device.platform in ("gpu", "cuda", "rocm") for device in jax.devices())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    no_torch = importlib.util.find_spec("torch") is None
    for item in items:
        if item.get_closest_marker("gpu") and not has_gpu():
            item.add_marker(pytest.mark.skip(reason="no GPU"))
        if item.get_closest_marker("torch") and no_torch:
            item.add_marker(pytest.mark.skip(reason="PyTorch is not installed"))


@pytest.fixture(autouse=True)
def isolated(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No ONELAUNCH_* variable from outside, a store shared by this worker's tests only, JAX's flags put back."""
    for name in [name for name in os.environ if name.startswith("ONELAUNCH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ONELAUNCH_CACHE_DIR", str(store_directory(tmp_path_factory)))
    before = {name: getattr(jax.config, name) for name in FLAGS}
    yield
    for name, value in before.items():
        if getattr(jax.config, name) != value:
            jax.config.update(name, value)


def store_directory(factory: pytest.TempPathFactory) -> Path:
    """One directory for each worker process, so that a kernel compiled by one test serves the next."""
    path = factory.getbasetemp() / "store"
    path.mkdir(exist_ok=True)
    return path
