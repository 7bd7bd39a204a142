"""The rules: how every JAX primitive becomes nodes. Importing this package fills ``RULES``."""

from onelaunch.ops import control, elementwise, index, linalg, matmul, random, reduce, shape, sort, window
from onelaunch.ops.table import REFUSED, RULES

__all__ = ["REFUSED", "RULES", "control", "elementwise", "index", "linalg", "matmul", "random", "reduce", "shape", "sort", "window"]
