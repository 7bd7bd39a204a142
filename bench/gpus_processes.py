"""A worker of bench/gpus.py: the same ensemble with one process a GPU, joined by ``jax.distributed``."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import onelaunch
from gpus_ensembles import BATCH, Ensemble, lorenz, times
from process import emit


def whole(ensemble: Ensemble) -> list[np.ndarray]:
    """The results on this process's first device alone."""
    device = jax.local_devices()[0]
    with jax.default_device(device):
        result = jax.jit(onelaunch.fuse(ensemble.fn, fallback="error"))(*jax.device_put(ensemble.args, device))
    return [np.asarray(part) for part in jax.tree.leaves(result)]


def member(address: str, count: int, index: int, small: bool) -> None:
    """One process of ``count``; the first one reports."""
    jax.distributed.initialize(address, num_processes=count, process_id=index)
    ensemble = lorenz(small)
    mesh = jax.make_mesh((count,), ("ensemble",), devices=jax.devices())

    def laid_out(value: jax.Array, spec: PartitionSpec) -> jax.Array:
        given = np.asarray(value)
        return jax.make_array_from_callback(given.shape, NamedSharding(mesh, spec), lambda index: given[index])

    args = tuple(map(laid_out, ensemble.args, ensemble.specs))
    fused = onelaunch.fuse(ensemble.fn, fallback="error")
    fn = jax.jit(jax.shard_map(fused, mesh=mesh, in_specs=ensemble.specs, out_specs=BATCH, check_vma=False))
    want = whole(ensemble)
    parts = [shard for part in jax.tree.leaves(fn(*args)) for shard in part.addressable_shards]
    equal = all(np.array_equal(np.asarray(shard.data), want[0][shard.index]) for shard in parts)
    timed = times(partial(fn, *args))
    if not equal:
        raise SystemExit(f"process {index}: the values differ from one device's")
    if index == 0:
        row: dict[str, Any] = {"case": f"{ensemble.label}, {count} processes", "gpus": count, **timed}
        emit({**row, "equal": equal, "devices": len(jax.devices()), "here": len(jax.local_devices())})


def start(count: int, small: bool) -> None:
    """``count`` processes, each with one GPU; what the first one prints is ours."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, __file__, *(["--small"] if small else []), "--address", address, "--count", str(count)]
    one = {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"} if small else {}
    running = [
        subprocess.Popen([*command, "--index", str(i)], env={**os.environ, **one, "CUDA_VISIBLE_DEVICES": str(i)})
        for i in range(count)
    ]
    failed = [i for i, process in enumerate(running) if process.wait() != 0]
    if failed:
        raise SystemExit(f"processes {failed} of {count} failed")


def main() -> None:
    """Start the processes at each width of two or more, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--section", choices=("processes",))
    parser.add_argument("--widths", type=int, nargs="+", default=[])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--address")
    parser.add_argument("--count", type=int)
    parser.add_argument("--index", type=int)
    options = parser.parse_args()
    if options.index is not None:
        member(options.address, options.count, options.index, options.small)
        return
    for width in options.widths:
        if width > 1:
            start(width, options.small)


if __name__ == "__main__":
    main()
