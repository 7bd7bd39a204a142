"""Measures the tiles of softmax and cross-entropy on the GPU at hand and writes them to kernels/tuned.json.

    python bench/tune_rows.py [--limit SECONDS] [--only KERNEL ...]

For each kernel ("softmax forward", "softmax backward", "cross_entropy"), element size and number of columns every
candidate tile runs on the same arrays, its values are compared with those of the rule's tile, and the fastest is kept,
with the fraction of a copy's rate that it reached. A worker tries them; where it hangs or dies the supervisor starts
another after the culprit. Nothing is tuned at a call: the file is part of the package.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import machine
from process import ROOT, write_json

sys.path.insert(0, str(ROOT / "src"))

TUNED = ROOT / "src" / "onelaunch" / "kernels" / "tuned.json"
KERNELS = ("softmax forward", "softmax backward", "cross_entropy")
#: Where an entry ends, and the columns it is measured at.
STEPS = {512: 256, 2048: 1024, 4096: 4096, 8192: 8192, 16384: 16384, 32768: 32000, 65536: 65536, 131072: 128256,
         262144: 256000, 524288: 500000}  # fmt: skip
#: Bytes of an array of a trial.
SIZE = 2**30
#: Seconds without an answer after which a trial counts as hanging.
PATIENCE = 30.0


@dataclass(frozen=True)
class Trial:
    """One tile at one shape."""

    kernel: str
    size: int
    upto: int
    columns: int
    elements: int
    warps: int
    registers: int | None
    packed: bool


def trials(kernels: list[str]) -> list[Trial]:
    """All candidates: 16 bytes to 64 elements a thread, at most 32 programs a row."""
    found = []
    for kernel in kernels:
        for size in (4, 2):
            for upto, columns in STEPS.items():
                if kernel != "cross_entropy" or upto > 16384:
                    found += [Trial(kernel, size, upto, columns, *tile) for tile in tiles(kernel, size, upto)]
    return found


def tiles(kernel: str, size: int, upto: int) -> list[tuple[int, int, int | None, bool]]:
    """Elements of a program, warps, bound on registers, packed."""
    packed_only = kernel == "cross_entropy"
    found: list[tuple[int, int, int | None, bool]] = []
    for elements in (2**k for k in range(9, 16)):
        fits = elements >= upto or (upto > 16384 and elements >= 4096 and upto // elements <= 32)
        if not fits or elements > 2 * max(upto, 1024):
            continue
        for warps in (1, 2, 4, 8, 16, 32):
            each = elements // warps // 32
            if each * size < 16 or each > 64:
                continue
            if not packed_only and each <= (64 if size == 4 else 32):
                found.append((elements, warps, None, False))
            if size == 2 and each == 64 and kernel != "softmax backward":
                found += [(elements, warps, registers, True) for registers in (64, 80)]
            if packed_only and size == 4 and each <= 32:
                found.append((elements, warps, None, True))
    return found


def prepare(trial: Trial) -> tuple[Callable[[], Any], int]:
    """The call to time, and the bytes that it must move."""
    import torch

    import onelaunch.torch as ot

    kind = {4: torch.float32, 2: torch.bfloat16}[trial.size]
    rows = SIZE // trial.size // trial.columns
    x = torch.empty(rows, trial.columns, dtype=kind, device="cuda").normal_(0, 2)
    if trial.kernel == "softmax forward":
        return lambda: ot.softmax(x, -1), 2 * x.nbytes
    leaf = x.requires_grad_()
    if trial.kernel == "softmax backward":
        y, up = ot.softmax(leaf, -1), torch.randn_like(x)
        return lambda: torch.autograd.grad(y, leaf, up, retain_graph=True)[0], 3 * x.nbytes
    target = torch.randint(0, trial.columns, (rows,), device="cuda")
    return lambda: torch.autograd.grad(ot.cross_entropy(leaf, target), leaf)[0], 2 * x.nbytes


def milliseconds(run: Callable[[], Any]) -> float:
    """The median of ten."""
    import torch

    run()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(10)]
    for start, stop in events:
        start.record()
        run()
        stop.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(stop) for start, stop in events)


def work(kernels: list[str], first: int, path: Path) -> None:
    """Time the trials from number ``first`` on; a JSON line each."""
    import torch

    from onelaunch.kernels import tiles as chosen

    shape: Any = None
    with path.open("a") as out:
        for number, trial in enumerate(trials(kernels)[first:], first):
            record: dict[str, Any] = {"number": number, **asdict(trial)}
            try:
                if shape != (trial.kernel, trial.size, trial.columns):
                    shape, call, want = (trial.kernel, trial.size, trial.columns), None, None
                    torch.cuda.empty_cache()
                    call, moved = prepare(trial)
                    with chosen.forced(1, 8192, 16):
                        want = call()[:8].float()
                width = chosen.power(trial.columns)
                parts = -(-trial.columns // trial.elements)
                height = max(1, trial.elements // width)
                tile = (height, min(width, trial.elements), trial.warps, trial.registers, parts, trial.packed)
                with chosen.forced(*tile):
                    torch.testing.assert_close(call()[:8].float(), want, rtol=2e-2, atol=1e-5)
                    record["ms"] = milliseconds(call)
                record["bytes"] = moved
            except Exception as failure:
                record["failure"] = f"{type(failure).__name__}: {failure}"[:200]
            out.write(json.dumps(record) + "\n")
            out.flush()


def supervise(kernels: list[str], limit: float, path: Path) -> list[dict[str, Any]]:
    """Run workers until all trials are answered or the time is up."""
    path.write_text("")
    start, first, count = time.monotonic(), 0, len(trials(kernels))
    while first < count and time.monotonic() - start < limit:
        command = [sys.executable, __file__, "--worker", str(first), "--path", str(path), "--only", *kernels]
        worker, size, since = subprocess.Popen(command), -1, time.monotonic()
        while worker.poll() is None:
            time.sleep(0.5)
            if path.stat().st_size != size:
                size, since = path.stat().st_size, time.monotonic()
            if time.monotonic() - since > PATIENCE or time.monotonic() - start > limit:
                worker.kill()
                worker.wait()
        answered = [json.loads(line)["number"] for line in path.read_text().splitlines()]
        first = max(answered, default=first - 1) + 2  # after the culprit, if one there was
    return [json.loads(line) for line in path.read_text().splitlines()]


def best(records: list[dict[str, Any]], rate: float) -> dict[str, list[dict[str, Any]]]:
    """The fastest tile of every kernel, size and step, as the file holds them."""
    table: dict[str, dict[int, dict[str, Any]]] = {}
    for record in records:
        steps = table.setdefault(f"{record['kernel']} {record['size']}", {})
        if "ms" in record and record["ms"] < steps.get(record["upto"], {"ms": float("inf")})["ms"]:
            steps[record["upto"]] = record
    names = ("upto", "elements", "warps", "registers", "packed")
    return {
        kernel: [
            {**{name: r[name] for name in names}, "of_copy": round(r["bytes"] / r["ms"] / rate, 3)}
            for _, r in sorted(steps.items())
        ]
        for kernel, steps in table.items()
    }


def copy_rate() -> float:
    """Bytes read and written in a millisecond by the best of some copies."""
    import torch

    rates = []
    for size in (SIZE, 2 * SIZE, 4 * SIZE):
        x = torch.zeros(size // 4, device="cuda")
        y = torch.empty_like(x)
        rates.append(2 * size / milliseconds(lambda x=x, y=y: y.copy_(x)))
    return max(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=900.0)
    parser.add_argument("--only", nargs="*", choices=KERNELS, default=list(KERNELS))
    parser.add_argument("--worker", type=int)
    parser.add_argument("--path", type=Path, default=Path("tune_rows.log"))
    options = parser.parse_args()
    if options.worker is not None:
        work(options.only, options.worker, options.path)
        return
    import torch

    major, minor = torch.cuda.get_device_capability()
    where, rate = machine.describe(), copy_rate()
    records = supervise(options.only, options.limit, options.path)
    tables = json.loads(TUNED.read_text())
    known = tables.get(f"{10 * major + minor}", {"tiles": {}})
    facts = {"gpu": where["gpu"], "date": str(where["date"])[:10], "triton": machine.version("triton")}
    found = known["tiles"] | best(records, rate)
    tables[f"{10 * major + minor}"] = facts | {"copy_gb_s": round(rate / 1e6), "tiles": found}
    write_json(TUNED, tables)


if __name__ == "__main__":
    main()
