"""Repairs of PTX that ptxas would miscompile."""

from __future__ import annotations

import re

_PACKED_ADD = re.compile(r"^[ \t]*add\.[su]16x2[ \t]+(%r\d+), (%r\d+), (%r\d+);$", re.MULTILINE)

_SPLIT = (
    "\t{{ .reg .b16 %a<4>; mov.b32 {{%a0, %a1}}, {1}; mov.b32 {{%a2, %a3}}, {2}; "
    "add.s16 %a0, %a0, %a2; add.s16 %a1, %a1, %a3; mov.b32 {0}, {{%a0, %a1}}; }}"
)


def repaired(ptx: str) -> str:
    """``add.s16x2 r, a, b`` → two ``add.s16`` of the halves.

    ptxas 12.8 and 12.9 add 0 where b is a constant and one half of r is not read. LLVM makes such additions of
    sixteen-bit integers and of index arithmetic that it narrows.
    """
    return _PACKED_ADD.sub(lambda found: _SPLIT.format(*found.groups()), ptx)
