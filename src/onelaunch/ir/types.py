"""Types of values: a static shape and a numpy dtype."""

from __future__ import annotations

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

#: Triton's name for every dtype a value may have.
TRITON_NAMES: dict[np.dtype, str] = {
    np.dtype(bool): "int1",
    **{np.dtype(f"int{n}"): f"int{n}" for n in (8, 16, 32, 64)},
    **{np.dtype(f"uint{n}"): f"uint{n}" for n in (8, 16, 32, 64)},
    np.dtype("float16"): "float16",
    BFLOAT16: "bfloat16",
    np.dtype("float32"): "float32",
    np.dtype("float64"): "float64",
}


@dataclass(frozen=True)
class Type:
    """Shape and dtype of a value."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{TRITON_NAMES.get(self.dtype, self.dtype)}[{','.join(map(str, self.shape))}]"


def is_float(dtype: np.dtype) -> bool:
    return dtype == BFLOAT16 or dtype.kind == "f"


def is_signed(dtype: np.dtype) -> bool:
    return dtype.kind == "i"


def is_unsigned(dtype: np.dtype) -> bool:
    return dtype.kind == "u"


def is_bool(dtype: np.dtype) -> bool:
    return dtype.kind == "b"
