"""fuse over several devices: eight forced host devices in a process of its own, by XLA and by interpreted kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).parent / "sharding_worker.py"


@pytest.mark.parametrize("interpret", ["0", "1"])
def test_eight_devices(interpret: str) -> None:
    env = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "ONELAUNCH_INTERPRET": interpret,
    }
    command = [sys.executable, "-W", "ignore", str(WORKER)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    assert done.stdout.splitlines()[-1] == "all ok", done.stdout
