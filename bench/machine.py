"""The machine and versions of a measurement."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import shutil
import subprocess
import tomllib
from pathlib import Path

from process import ROOT

PACKAGES = ("onelaunch", "jax", "jaxlib", "triton", "torch", "numpy")


def describe() -> dict[str, object]:
    """GPU and driver ("none" without one), processor, versions, date (UTC)."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "cpu": processor(),
        "cores": os.cpu_count(),
        **graphics(),
        "versions": {name: version(name) for name in PACKAGES},
    }


def graphics() -> dict[str, object]:
    """Names of the GPUs and the driver's version."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {"gpu": "none", "gpus": 0, "driver": "none"}
    query = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    lines = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
    if not lines or "," not in lines[0]:
        return {"gpu": "none", "gpus": 0, "driver": "none"}
    name, driver = (part.strip() for part in lines[0].split(",", 1))
    return {"gpu": name, "gpus": len(lines), "driver": driver}


def processor() -> str:
    """The processor's model name."""
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def version(package: str) -> str | None:
    """A package's installed version, or None; onelaunch's own as the checkout says."""
    if package == "onelaunch":
        return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
