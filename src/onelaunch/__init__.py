"""onelaunch: a JAX program that XLA runs as thousands of tiny GPU launches runs as one."""

from onelaunch.api import Lowered, fuse
from onelaunch.errors import BuildError, FusionError, OnelaunchError, OptionError, Refusal, Where

__all__ = ["BuildError", "FusionError", "Lowered", "OnelaunchError", "OptionError", "Refusal", "Where", "fuse"]
