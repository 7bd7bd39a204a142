"""The errors a user can meet: classes with fields, whose text opens with the user's file and line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Where:
    """A place in the user's program: file, line (1-based) and function name."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f" ({self.function})" if self.function else "")


#: What to do about a fault of onelaunch.
REPORT = "It runs in XLA; please report it with the function, its arguments' types and this text."


@dataclass(frozen=True)
class Refusal:
    """Why a part of a program stays in XLA: where, what (the primitive), why, and what to do.

    stage: what found it: "trace" (a primitive, dtype or effect), "cost" (a kernel would lose), "limits" (it would take
    more than a GPU has), "sharding" (arrays on several devices, outside of ``shard_map``), "internal" (a fault of
    onelaunch, to be reported), "build" (Triton) or "launch".
    """

    where: Where | None
    what: str
    why: str
    fix: str
    stage: str = "trace"

    @classmethod
    def internal(cls, where: Where | None, what: str, error: Exception) -> Refusal:
        """The refusal of what onelaunch fails on by a fault of its own."""
        why = f"an internal error of onelaunch ({type(error).__name__}: {error})"
        return cls(where, what, why, REPORT, "internal")

    def __str__(self) -> str:
        place = str(self.where) if self.where else "<unknown place>"
        return f"{place}: {self.what} was not fused: {self.why}. {self.fix}"


class OnelaunchError(Exception):
    """Base of every error that onelaunch raises itself."""


class FusionError(OnelaunchError):
    """A program, or a part of it, can't become one kernel (raised under ``fallback="error"``)."""

    def __init__(self, refusal: Refusal):
        super().__init__(str(refusal))
        self.refusal = refusal

    @property
    def stage(self) -> str:
        return self.refusal.stage

    @property
    def where(self) -> Where | None:
        return self.refusal.where

    @property
    def what(self) -> str:
        return self.refusal.what

    @property
    def why(self) -> str:
        return self.refusal.why

    @property
    def fix(self) -> str:
        return self.refusal.fix


class OptionError(OnelaunchError, ValueError):
    """An option or target that does not exist; the text lists those that do."""


class BuildError(OnelaunchError):
    """Triton could not compile a generated kernel: stage, message and the kernel's name."""

    def __init__(self, kernel: str, stage: str, why: str):
        super().__init__(f"kernel {kernel!r} did not compile ({stage}): {why}")
        self.kernel, self.stage, self.why = kernel, stage, why
