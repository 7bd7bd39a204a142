"""The kernels XLA launches for a program, from its HLO text: a loop's body counts once an iteration."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Instructions that run no kernel of their own: they name, regroup or pass on buffers, or only control the host.
FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "opt-barrier", "after-all", "partition-id"),
    *("copy-done", "async-done", "async-update", "replica-id", "domain", "add-dependency"),
}
COMPUTATION = re.compile(r"^(ENTRY\s+)?%?([\w.\-]+)\s*\(.*->.*\{\s*$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT\s+)?%?[\w.\-]+ = (.*)$")
OPCODE = re.compile(r"(?:^|[\s)}\]])([a-z][a-z0-9\-]*)\(")
TRIPS = re.compile(r'"?known_trip_count"?:\s*\{"?n"?:\s*"?(\d+)"?')
CALLED = re.compile(r"\b(body|condition|to_apply|calls|called_computations)=\{?%?([\w.\-]+)")
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}|(?:true|false)_computation=%?([\w.\-]+)")


@dataclass(frozen=True)
class Launches:
    """A count of launches; `at_least` where a loop's trip count is not known (its body is then counted once)."""

    count: int
    at_least: bool = False

    def __str__(self) -> str:
        return f"{'≥ ' if self.at_least else ''}{self.count:,}"


def count_launches(text: str) -> Launches:
    """The launches of the entry computation of an HLO module's text."""
    bodies, entry = parse(text)
    return count(bodies, entry)


def loops(text: str) -> list[tuple[Launches, int | None]]:
    """The loops of the entry computation: launches of one turn, and the number of turns where XLA knows it."""
    bodies, entry = parse(text)
    found = []
    for instruction in bodies.get(entry, ()):
        opcode = OPCODE.search(instruction)
        if opcode is None or opcode[1] != "while":
            continue
        called, known = dict(CALLED.findall(instruction)), TRIPS.search(instruction)
        body, condition = count(bodies, called["body"]), count(bodies, called["condition"])
        turn = Launches(body.count + condition.count, body.at_least or condition.at_least)
        found.append((turn, int(known[1]) if known else None))
    return found


def parse(text: str) -> tuple[dict[str, list[str]], str]:
    """The instructions of each computation, and the name of the entry."""
    bodies: dict[str, list[str]] = {}
    name = entry = ""
    for line in text.splitlines():
        head = COMPUTATION.match(line)
        if head:
            name = head[2]
            bodies[name] = []
            entry = name if head[1] else entry
        elif (body := INSTRUCTION.match(line)) and name:
            bodies[name].append(body[1])
    return bodies, entry


def count(bodies: dict[str, list[str]], name: str) -> Launches:
    """The launches of one computation with everything that it calls."""
    total, at_least = 0, False
    for instruction in bodies.get(name, ()):
        inner = count_instruction(bodies, instruction)
        total, at_least = total + inner.count, at_least or inner.at_least
    return Launches(total, at_least)


def count_instruction(bodies: dict[str, list[str]], instruction: str) -> Launches:
    """The launches of one instruction."""
    found = OPCODE.search(instruction)
    opcode = found[1] if found else ""
    called = dict(CALLED.findall(instruction))
    if opcode == "while":
        body, condition = count(bodies, called["body"]), count(bodies, called["condition"])
        known = TRIPS.search(instruction)
        trips = int(known[1]) if known else 1
        unknown = known is None or body.at_least or condition.at_least
        return Launches((body.count + condition.count) * trips, unknown)
    if opcode == "conditional":
        names = [name.strip(" %") for many, one in BRANCHES.findall(instruction) for name in (many or one).split(",")]
        inner = [count(bodies, name) for name in names]
        return Launches(max(i.count for i in inner), True)
    if opcode == "call":
        return count(bodies, called["to_apply"])
    return Launches(0 if opcode in FREE or not opcode else 1)
