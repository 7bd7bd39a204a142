"""Times, memory and kernel counts of a JAX callable on this process's device."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

Call = Callable[[], Any]


def blocked_ms(call: Call, budget_s: float = 1.5, most: int = 30) -> dict[str, float | int]:
    """Median and least time of calls, each blocked until ready, after one call to warm up."""
    jax.block_until_ready(call())
    times: list[float] = []
    end = time.perf_counter() + budget_s
    while len(times) < most and (len(times) < 3 or time.perf_counter() < end):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append((time.perf_counter() - start) * 1e3)
        if times[-1] > budget_s * 1e3:
            break
    return {"median_ms": statistics.median(times), "least_ms": min(times), "calls": len(times)}


def queued_us(call: Call, calls: int = 1000, rounds: int = 5) -> float:
    """Microseconds a call costs when many are queued and only the last is waited for (median of some rounds)."""
    jax.block_until_ready(call())
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            result = call()
        jax.block_until_ready(result)
        times.append((time.perf_counter() - start) / calls * 1e6)
    return statistics.median(times)


def profile(call: Call, calls: int = 5) -> dict[str, float | int | list[str]]:
    """Kernels a call launches, their names (at most five) and their time on the device, by JAX's profiler."""
    jax.block_until_ready(call())
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(calls):
                jax.block_until_ready(call())
        traces = list(Path(folder).rglob("*.xplane.pb"))
        kernels = [event for path in traces for event in device_events(path)]
    names = sorted({name for name, _ in kernels})
    total_ms = sum(duration for _, duration in kernels) / 1e6
    return {"kernels": len(kernels) / calls, "kernel_names": names[:5], "device_ms": total_ms / calls}


def device_events(path: Path) -> list[tuple[str, float]]:
    """Name and nanoseconds of each kernel in a profile (copies between host and device left out)."""
    data = jax.profiler.ProfileData.from_file(str(path))
    lines = [line for plane in data.planes if plane.name.startswith("/device:GPU") for line in plane.lines]
    events = [event for line in lines if line.name.startswith("Stream") for event in line.events]
    return [(e.name, e.duration_ns) for e in events if not e.name.lower().startswith(("memcpy", "memset"))]


def peak_bytes() -> int | None:
    """The most bytes this process held on the device so far (None where the backend does not count)."""
    stats = jax.devices()[0].memory_stats() or {}
    return stats.get("peak_bytes_in_use")
