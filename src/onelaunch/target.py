"""The machines that kernels are compiled for, offline or not."""

from __future__ import annotations

import re
from dataclasses import dataclass

from onelaunch.errors import OptionError

#: Targets that the tests compile for; any other ``cuda:<sm>`` from 75 on or ``hip:gfx*`` is accepted as well.
KNOWN = ("cuda:80", "cuda:86", "cuda:89", "cuda:90", "cuda:100", "cuda:120", "hip:gfx90a", "hip:gfx942", "hip:gfx950")


@dataclass(frozen=True)
class Target:
    """A GPU architecture: backend "cuda" with arch "90", or backend "hip" with arch "gfx942"."""

    backend: str
    arch: str

    @property
    def warp_size(self) -> int:
        """Threads that run in step: 32 on NVIDIA and RDNA, 64 on CDNA."""
        return 64 if self.backend == "hip" and self.arch.startswith("gfx9") else 32

    def __str__(self) -> str:
        return f"{self.backend}:{self.arch}"


def parse(text: str) -> Target:
    """``"cuda:90"`` or ``"hip:gfx942"`` as a Target; OptionError, which lists the known ones, otherwise."""
    if (match := re.fullmatch(r"cuda:(\d{2,3})", text)) and int(match[1]) >= 75:
        return Target("cuda", match[1])
    if match := re.fullmatch(r"hip:(gfx[0-9a-f]{3,4})", text):
        return Target("hip", match[1])
    raise OptionError(f"unknown target {text!r}; known targets: {', '.join(KNOWN)}")


def from_capability(capability: str) -> Target:
    """A device's compute capability as its driver prints it ("9.0", "gfx942:sramecc+:xnack-") as a Target."""
    name = capability.split(":")[0]
    return parse(f"hip:{name}" if name.startswith("gfx") else f"cuda:{name.replace('.', '')}")
