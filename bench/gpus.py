"""Several GPUs of one host: sharded ensembles, shared gradients, a multi-process start, sharded vocabularies.

    python bench/gpus.py [--gpus N ...] [--only SECTION ...] [--small] [--limit SECONDS] [--out FILE]

Each section runs in a process of its own (or one for each GPU) under a time limit. A number of GPUs that this machine
has not is recorded as not run. `--small` rehearses on forced host devices, kernels in Triton's interpreter. The record
goes to bench/results/gpus-GPU.json; bench/table.py makes the scaling tables from it.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from machine import describe
from process import RESULTS, run_worker, write_json

WIDTHS = (1, 2, 4, 8)
# Section -> the script that runs it, and whether it takes one process for each GPU (the script starts them).
SECTIONS = {
    "ensembles": "gpus_ensembles.py",
    "gradient": "gpus_ensembles.py",
    "processes": "gpus_processes.py",
    "vocabulary_jax": "gpus_vocabulary_jax.py",
    "vocabulary_torch": "gpus_vocabulary_torch.py",
}


def main() -> None:
    """Run every section at every width and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, nargs="*", default=list(WIDTHS), help="numbers of GPUs (1 2 4 8)")
    parser.add_argument("--only", nargs="*", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--small", action="store_true", help="forced host devices and tiny sizes")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds for one section")
    parser.add_argument("--out", type=Path, help="file of the record")
    options = parser.parse_args()
    machine = describe()
    there = max(options.gpus) if options.small else int(str(machine["gpus"]))
    widths = [n for n in options.gpus if n <= there]
    record: dict[str, Any] = {
        "machine": machine,
        "small": options.small,
        "not_run": [n for n in options.gpus if n > there],
        "sections": {},
    }
    kind = "small" if options.small else str(machine["gpu"]).lower().replace(" ", "-")
    path = options.out or RESULTS / f"gpus-{kind}.json"
    for name in options.only:
        args = ["--section", name, "--widths", *map(str, widths), *(["--small"] if options.small else [])]
        outcome = run_worker(SECTIONS[name], args, options.limit, rehearsal(there) if options.small else None)
        record["sections"][name] = {"status": outcome.status, "rows": list(outcome.records)}
        for row in outcome.records:
            print(name, row, flush=True)
        print(f"{name}: {outcome.status}", flush=True)
        if not options.small or options.out:
            write_json(path, record)


def rehearsal(devices: int) -> dict[str, str]:
    """The environment of a run without GPUs."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags.strip(), "ONELAUNCH_INTERPRET": "1"}


if __name__ == "__main__":
    main()
