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


@dataclass(frozen=True)
class Refusal:
    """Why a part of a program stays in XLA: where, what (the primitive), why, and what to do."""

    where: Where | None
    what: str
    why: str
    fix: str

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
