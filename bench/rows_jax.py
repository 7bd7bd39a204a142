"""Times onelaunch.nn beside XLA on one GPU: softmax, cross-entropy, linear cross-entropy; milliseconds and memory.

    python bench/rows_jax.py [--limit SECONDS] [--only xla onelaunch] [--chunk N] [--small]

"xla" is jax.nn, optax's loss, and whole logits for the linear one. Each contender is a process of its own. Times are of
runs queued one after another until the last is done, divided by their number; ``temp_bytes`` is what XLA sets aside
beside arguments and results, ``ideal_bytes`` what must move. The result is bench/results/rows-jax-GPU.json.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp

import machine
from process import RESULTS, emit, run_worker, write_json

CONTENDERS = ("xla", "onelaunch")
FEATURES, CLASSES = 4096, 128_256
#: Elements of a softmax case.
ELEMENTS = 2**28
IGNORED = 7  # one row in so many


@dataclass(frozen=True)
class Case:
    """What is timed: kind copy, softmax, cross_entropy or linear; direction forward or both.

    chunk is for onelaunch's linear alone (None: its own choice).
    """

    kind: str
    direction: str
    dtype: str
    rows: int
    columns: int
    features: int = 0
    chunk: int | None = None

    def ideal(self) -> int:
        """Bytes that must move (not for linear, which multiplies)."""
        array = self.rows * self.columns * jnp.dtype(self.dtype).itemsize
        return {"copy forward": 2, "softmax forward": 2, "softmax both": 5, "cross_entropy both": 2}.get(
            f"{self.kind} {self.direction}", 0
        ) * array  # fmt: skip


def cases(small: bool, chunks: Sequence[int] = ()) -> list[Case]:
    """All of them, the linear ones also with ``chunks``; ``small`` is a quick trial of the script."""
    if small:
        return [Case("softmax", "both", "float32", 8, 100), Case("cross_entropy", "both", "bfloat16", 8, 100),
                Case("linear", "both", "bfloat16", 16, 100, 32, 8)]  # fmt: skip
    found = [Case("copy", "forward", "bfloat16", 8192, 65536)]
    found += [Case("softmax", "both", "bfloat16", ELEMENTS // n, n) for n in (4096, 131072)]
    found += [Case("cross_entropy", "both", "bfloat16", r, v) for r, v in ((8192, 32000), (8192, 128256))]
    return found + [
        Case("linear", "both", "bfloat16", n, CLASSES, FEATURES, chunk)
        for n in (1024, 4096, 8192, 16384)
        for chunk in (None, *chunks)
    ]


def contender(name: str, case: Case) -> Any:
    """The function that is timed, of the arrays of the case."""
    import optax

    from onelaunch import nn

    ours = name == "onelaunch"
    if case.kind == "copy":
        return lambda x, *_: x + 1
    if case.kind == "softmax":
        softmax = nn.softmax if ours else jax.nn.softmax
        if case.direction == "forward":
            return lambda x, g: softmax(x)
        return lambda x, g: jax.vjp(softmax, x)[1](g)[0]

    def mean(logits: Any, t: Any) -> Any:
        losses = optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), jnp.maximum(t, 0))
        return jnp.sum(losses, where=t >= 0) / jnp.sum(t >= 0)

    if case.kind == "cross_entropy":
        return jax.value_and_grad(nn.cross_entropy if ours else mean)
    if ours:
        return jax.value_and_grad(lambda h, w, t: nn.linear_cross_entropy(h, w, t, chunk=case.chunk), (0, 1))
    return jax.value_and_grad(lambda h, w, t: mean(h @ w.T, t), (0, 1))


def arrays(case: Case) -> tuple[Any, ...]:
    """Its arguments, made on the device."""
    a, b, c = jax.random.split(jax.random.key(0, impl="rbg"), 3)
    kind = jnp.dtype(case.dtype)

    def normal(key: Any, *shape: int, scale: float) -> Any:
        return jax.jit(lambda: jax.random.normal(key, shape, kind) * jnp.asarray(scale, kind))()

    t = jax.random.randint(c, (case.rows,), 0, case.columns).at[::IGNORED].set(-100)
    if case.kind == "linear":
        return normal(a, case.rows, case.features, scale=1), normal(b, case.columns, case.features, scale=0.02), t
    x = normal(a, case.rows, case.columns, scale=2)
    return (x, normal(b, case.rows, case.columns, scale=1)) if case.kind == "softmax" else (x, t)


def one(name: str, case: Case) -> dict[str, Any]:
    """Times, memory, and the loss."""
    given = arrays(case)
    began = time.perf_counter()
    run = jax.jit(contender(name, case)).lower(*given).compile()
    record: dict[str, Any] = {"compile_s": time.perf_counter() - began}
    memory = run.memory_analysis()
    record |= {"temp_bytes": memory.temp_size_in_bytes, "output_bytes": memory.output_size_in_bytes}
    result = jax.block_until_ready(run(*given))
    if isinstance(result, tuple):
        record["loss"] = float(result[0])
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < 3 or (time.perf_counter() - began < 0.3 and len(times) < 50):
        start = time.perf_counter()
        for _ in range(4):
            result = run(*given)
        jax.block_until_ready(result)
        times.append((time.perf_counter() - start) / 4 * 1e3)
    return record | {"median_ms": statistics.median(times), "low_ms": min(times), "runs": 4 * len(times)}


def work(name: str, small: bool, chunks: Sequence[int]) -> None:
    """All cases of one contender; each a JSON line."""
    for case in cases(small, chunks if name == "onelaunch" else ()):
        if name == "xla" and (case.kind == "copy" or (case.rows > 4096 and case.kind == "linear")):
            continue  # whole logits of more tokens compile for long
        record: dict[str, Any] = {"contender": name, **asdict(case), "ideal_bytes": case.ideal()}
        try:
            record |= one(name, case)
        except Exception as failure:
            record["status"] = f"{type(failure).__name__}: {failure}"[:300]
        emit(record)


def fractions(records: list[dict[str, Any]]) -> None:
    """Each record's share of the copy ceiling: the best rate, read and written, of this run."""
    rates = [
        2 * r["rows"] * r["columns"] * jnp.dtype(r["dtype"]).itemsize / r["median_ms"]
        for r in records
        if r["kind"] == "copy" and "median_ms" in r
    ]
    for record in records:
        if rates and "median_ms" in record and record["ideal_bytes"]:
            record["of_copy"] = record["ideal_bytes"] / record["median_ms"] / max(rates)


def main() -> None:
    """Supervise the workers, or be one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each contender")
    parser.add_argument("--only", nargs="*", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--chunk", nargs="*", type=int, default=[])
    parser.add_argument("--small", action="store_true", help="a quick trial of the script")
    parser.add_argument("--worker", choices=CONTENDERS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.small, options.chunk)
        return
    where = machine.describe()
    if where["gpu"] == "none" and not options.small:
        sys.exit("bench/rows_jax.py needs a GPU")
    records: list[dict[str, Any]] = []
    status: dict[str, str] = {}
    passed = ["--chunk", *map(str, options.chunk), *(["--small"] if options.small else [])]
    for name in options.only:
        outcome = run_worker("rows_jax.py", ["--worker", name, *passed], options.limit)
        records += outcome.records
        status[name] = outcome.status
        print(f"{name}: {outcome.status}, {len(outcome.records)} cases", flush=True)
    fractions(records)
    slug = re.sub(r"[^a-z0-9]+", "-", str(where["gpu"]).lower()).strip("-")
    if where["gpu"] != "none":
        write_json(RESULTS / f"rows-jax-{slug}.json", {"machine": where, "status": status, "results": records})
    for r in records:
        what = (
            f"{r['contender']} {r['kind']} {r['direction']} {r['dtype']} {r['rows']}x{r['columns']} {r['chunk'] or ''}"
        )
        if "median_ms" not in r:
            print(what, r["status"])
            continue
        numbers = f"{r['median_ms']:.3f} ms, {r['temp_bytes'] / 1e9:.2f} + {r['output_bytes'] / 1e9:.2f} GB"
        print(
            what, numbers, f"{r.get('of_copy', 0):.2f}", f"loss {r.get('loss', 0):.4f}, compiled {r['compile_s']:.1f} s"
        )


if __name__ == "__main__":
    main()
