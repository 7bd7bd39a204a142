"""A program that is no single kernel → kernels, and what is kept in XLA between them."""

from onelaunch.partition.account import Placed, after, describe, placed
from onelaunch.partition.parts import LEAST_LAUNCHES, Parts, Step, split
from onelaunch.partition.run import run

__all__ = ["LEAST_LAUNCHES", "Parts", "Placed", "Step", "after", "describe", "placed", "run", "split"]
