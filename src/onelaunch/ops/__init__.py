"""The rules: how every JAX primitive becomes nodes. Importing this package fills ``RULES``."""

from onelaunch.ops import (
    complex,
    control,
    elementwise,
    foreign,
    generator,
    index,
    linalg,
    matmul,
    random,
    reduce,
    shape,
    sort,
    window,
)
from onelaunch.ops.table import REFUSED, RULES

SUBJECTS = (
    complex,
    control,
    elementwise,
    foreign,
    generator,
    index,
    linalg,
    matmul,
    random,
    reduce,
    shape,
    sort,
    window,
)

__all__ = ["REFUSED", "RULES", "SUBJECTS"]
