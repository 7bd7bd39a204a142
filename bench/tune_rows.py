"""Measures the tiles of softmax and cross-entropy on the GPU at hand and writes them to kernels/tuned.json.

    python bench/tune_rows.py [--limit SECONDS] [--only KERNEL ...] [--sizes BYTES ...] [--upto COLUMNS ...]

For each kernel ("softmax forward", "softmax backward", "cross_entropy"), element size and number of columns every
candidate tile runs on the same arrays, its values are compared with those of the rule's tile, and the fastest is kept,
with the fraction of a copy's rate that it reached. Workers share the candidates: they compile side by side and time one
after another; where one hangs or dies its supervisor starts another after the culprit. All trials are written to a log,
tune_rows.jsonl, and what an earlier run left there is not tried again. Nothing is tuned at a call: the file is part of
the package.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import machine
from process import ROOT, exclusive

sys.path.insert(0, str(ROOT / "src"))

TUNED = ROOT / "src" / "onelaunch" / "kernels" / "tuned.json"
KERNELS = ("softmax forward", "softmax backward", "cross_entropy")
#: Where an entry ends, and the columns it is measured at.
STEPS = {512: 256, 2048: 1024, 4096: 4096, 8192: 8192, 16384: 16384, 32768: 32000, 65536: 65536, 131072: 128256,
         262144: 256000, 524288: 500000}  # fmt: skip
#: Bytes of an array of a trial.
SIZE = 2**30
#: Processes that compile side by side.
WORKERS = 12
#: Seconds without an answer after which a trial counts as hanging.
PATIENCE = 90.0


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


def trials(kernels: list[str], sizes: list[int], steps: list[int]) -> list[Trial]:
    """All candidates: 16 to 512 bytes a thread, at most 32 programs a row."""
    found = []
    for kernel in kernels:
        for size in sizes:
            for upto in steps:
                if kernel != "cross_entropy" or upto > 16384:
                    found += [Trial(kernel, size, upto, STEPS[upto], *tile) for tile in tiles(kernel, size, upto)]
    return found


def tiles(kernel: str, size: int, upto: int) -> list[tuple[int, int, int | None, bool]]:
    """Elements of a program, warps, bound on registers, packed."""
    packed_only = kernel == "cross_entropy"
    kinds = (True,) if packed_only else (False, True) if kernel == "softmax forward" and size == 2 else (False,)
    found: list[tuple[int, int, int | None, bool]] = []
    for elements in (2**k for k in range(9, 16)):
        fits = elements >= upto or (upto > 16384 and elements >= 2048 and upto // elements <= 32)
        if not fits or elements > 2 * max(upto, 1024):
            continue
        for warps in (1, 2, 4, 8, 16, 32):
            each = elements // warps // 32
            if each * size < 16 or each > 128:
                continue
            for packed in kinds:
                held = each * (size if packed else 4) // 4
                if not packed or held >= 16 or packed_only:
                    found += [(elements, warps, registers, packed) for registers in bounds(held)]
    return found


def bounds(held: int) -> list[int | None]:
    """On a thread's registers: none, and such as leave little or some room beside those that hold the row's piece."""
    return [None] if held < 16 else [None, held + 32, held + 40, held + 48]


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


def work(some: list[Trial], first: int, path: Path) -> None:
    """Time the trials from number ``first`` on; a JSON line each."""
    import torch

    from onelaunch.kernels import tiles as chosen

    shape: Any = None
    with path.open("a") as out:
        for number, trial in enumerate(some[first:], first):
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
                    with exclusive():
                        record["ms"] = milliseconds(call)
                record["bytes"] = moved
            except Exception as failure:
                record["failure"] = f"{type(failure).__name__}: {failure}"[:200]
            out.write(json.dumps(record) + "\n")
            out.flush()


def supervise(passed: list[str], count: int, worker: int, limit: float) -> list[dict[str, Any]]:
    """Run a worker until its ``count`` trials are answered or the time is up."""
    start, first = time.monotonic(), 0
    with tempfile.NamedTemporaryFile(mode="r") as file:
        path = Path(file.name)
        while first < count and time.monotonic() - start < limit:
            command = [sys.executable, __file__, "--worker", str(worker), "--first", str(first), "--path", file.name]
            process, size, since = subprocess.Popen([*command, *passed]), -1, time.monotonic()
            while process.poll() is None:
                time.sleep(0.5)
                if path.stat().st_size != size:
                    size, since = path.stat().st_size, time.monotonic()
                if time.monotonic() - since > PATIENCE or time.monotonic() - start > limit:
                    process.kill()
                    process.wait()
            answered = [json.loads(line)["number"] for line in path.read_text().splitlines()]
            first = max(answered, default=first - 1) + 2  # after the culprit, if one there was
        return [json.loads(line) for line in path.read_text().splitlines()]


def answered(log: Path) -> dict[Trial, dict[str, Any]]:
    """The trials in a log, with their records."""
    records = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return {Trial(**{field.name: record[field.name] for field in fields(Trial)}): record for record in records}


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


def shown(tables: dict[str, Any]) -> str:
    """The file's text: an entry on each line."""
    text = json.dumps(tables, indent=1)
    return re.sub(r"{\s*(\"upto\"[^}]*?)\s*}", lambda m: "{" + re.sub(r"\s+", " ", m[1]) + "}", text) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=900.0, help="seconds")
    parser.add_argument("--only", nargs="*", choices=KERNELS, default=list(KERNELS))
    parser.add_argument("--sizes", nargs="*", type=int, choices=(4, 2), default=[4, 2], help="bytes of an element")
    parser.add_argument("--upto", nargs="*", type=int, choices=STEPS, default=list(STEPS), help="columns of entries")
    parser.add_argument("--log", type=Path, default=Path("tune_rows.jsonl"))
    parser.add_argument("--dry", action="store_true", help="measure, but leave the file as it is")
    parser.add_argument("--worker", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--path", type=Path)
    options = parser.parse_args()
    found, known = trials(options.only, options.sizes, options.upto), answered(options.log)
    found = [trial for trial in found if trial not in known]
    if options.worker is not None:
        work(found[options.worker :: WORKERS], options.first, options.path)
        return
    import torch

    major, minor = torch.cuda.get_device_capability()
    where, rate = machine.describe(), copy_rate()
    passed = ["--only", *options.only, "--sizes", *map(str, options.sizes), "--upto", *map(str, options.upto)]
    passed += ["--log", str(options.log)]
    with tempfile.NamedTemporaryFile() as lock, ThreadPoolExecutor(WORKERS) as pool:
        os.environ["BENCH_LOCK"] = lock.name
        counts = [len(found[worker::WORKERS]) for worker in range(WORKERS)]
        shares = pool.map(lambda w: supervise(passed, counts[w], w, options.limit), range(WORKERS))
        records = [*known.values(), *(record for share in shares for record in share)]
    options.log.write_text("".join(json.dumps(record) + "\n" for record in records))
    print(f"{len(records)} trials, {len(known)} of an earlier run; {sum('failure' in r for r in records)} failed")
    tables = json.loads(TUNED.read_text())
    table = tables.get(f"{10 * major + minor}", {"tiles": {}})
    facts = {"gpu": where["gpu"], "date": str(where["date"])[:10], "triton": machine.version("triton")}
    measured = best(records, rate)
    for kernel, entries in measured.items():
        steps = {entry["upto"]: entry for entry in table["tiles"].get(kernel, [])}
        steps |= {entry["upto"]: entry for entry in entries}
        table["tiles"][kernel] = [steps[upto] for upto in sorted(steps)]
        for entry in entries:
            print(kernel, json.dumps(entry))
    tables[f"{10 * major + minor}"] = facts | {"copy_gb_s": round(rate / 1e6), "tiles": table["tiles"]}
    if not options.dry:
        TUNED.write_text(shown(tables))


if __name__ == "__main__":
    main()
