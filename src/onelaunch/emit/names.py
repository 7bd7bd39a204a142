"""Names: unique, readable, and nothing that means something else in a generated module."""

from __future__ import annotations

import builtins
import keyword
import re
from collections import Counter

from onelaunch import device
from onelaunch.place.nodes import Buffer, Op


class Names:
    """Unique, readable names."""

    TAKEN = frozenset({*keyword.kwlist, *dir(builtins), "tl", "triton", "l", "O", "I"})

    def __init__(self) -> None:
        self.used: Counter[str] = Counter()
        self.names: dict[object, str] = {}

    def of(self, thing: object, base: str) -> str:
        if thing not in self.names:
            base = re.sub(r"\W+", "_", base).strip("_") or "x"
            if base[0].isdigit():
                base = f"x{base}"
            name = base
            while name in self.TAKEN or name in device.library() or self.used[name]:
                self.used[base] += 1
                name = f"{base}_{self.used[base]}"
            self.used[name] += 1
            self.names[thing] = name
        return self.names[thing]

    def buffer(self, b: Buffer) -> str:
        return self.of(b.base or b, (b.base or b).name)


#: Short names for the results of operations.
STEMS = {
    "index_lt": "inside",
    "index_ge": "inside",
    "index_eq": "here",
    "index_add": "at",
    "index_mul": "at",
    "index_sub": "at",
    "index_min": "at",
    "index_max": "at",
    "arange": "lane",
    "index_to": "step",
    "program_id": "program",
    "reduce": "total",
    "threefry2x32": "bits",
    "select": "chosen",
    "broadcast": "full",
    "spread": "row",
    "and": "both",
    "or": "either",
    "not": "other",
    "eq": "same",
    "ne": "differs",
    "lt": "less",
    "le": "less",
    "gt": "more",
    "ge": "more",
}


def stem(op: Op) -> str:
    """What to call the result of an operation that has no name of the user's."""
    return STEMS.get(op.fn, op.fn.removeprefix("index_"))
