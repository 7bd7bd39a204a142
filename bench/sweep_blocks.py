"""Tiles of the block-sparse products and attention on this GPU: right or wrong against dense PyTorch, then how fast.

    PYTHONPATH=src python bench/sweep_blocks.py [--only dsd,sdd,block_attention] [--seconds 150]

Every configuration is checked first, several processes at a time; what is right is timed, one after the other. A worker
that says nothing for a while is ended and the next configuration begun. A line each: kernel, block, dim, tile, result.
"""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import sys
import threading
import time
from typing import Any

import torch
from triton.testing import do_bench

from onelaunch.kernels import matmul_calls
from onelaunch.kernels.attention_calls import COLUMNS, FORWARD, ROWS, Attention
from onelaunch.sparse import BlockLayout, random
from onelaunch.torch import block_attention as attention
from onelaunch.torch import block_attention_reference as reference
from onelaunch.torch import block_matmul as products

STALL = 25.0
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

#: By kernel, block, and head dim or 0.
TILES: dict[tuple[str, int, int], list[tuple[int, ...]]] = {
    ("dsd", 128, 0): [(256, 64, 8, 3), (256, 64, 8, 4), (128, 64, 4, 4), (128, 64, 8, 4), (256, 128, 8, 2)],
    ("dsd", 64, 0): [(256, 64, 4, 3), (256, 64, 4, 2), (512, 64, 8, 3), (128, 64, 4, 4), (256, 64, 8, 4)],
    ("sdd", 128, 0): [(2, 64, 8, 3), (2, 64, 8, 4), (1, 64, 4, 4), (1, 64, 8, 4)],
    ("sdd", 64, 0): [(4, 64, 4, 3), (4, 64, 4, 2), (4, 64, 8, 4), (2, 64, 4, 4), (8, 64, 8, 3)],
    (FORWARD, 128, 64): [(128, 64, 4, 3), (128, 128, 4, 3), (128, 64, 8, 3), (128, 128, 8, 3), (64, 64, 4, 3)],
    (FORWARD, 128, 128): [(128, 64, 8, 3), (128, 128, 8, 2), (128, 64, 8, 2), (64, 64, 4, 3), (128, 128, 8, 3)],
    (FORWARD, 64, 64): [(64, 64, 4, 2), (64, 64, 4, 3), (64, 64, 4, 4)],
    (FORWARD, 64, 128): [(64, 64, 4, 2), (64, 64, 4, 3)],
    (ROWS, 128, 64): [(128, 64, 8, 2), (128, 64, 4, 2), (128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 3)],
    (ROWS, 128, 128): [(128, 64, 8, 2), (128, 32, 8, 3), (128, 128, 8, 1), (64, 64, 4, 2), (128, 64, 8, 3)],
    (ROWS, 64, 64): [(64, 64, 4, 2), (64, 64, 4, 3)],
    (ROWS, 64, 128): [(64, 64, 4, 2), (64, 64, 4, 1)],
    (COLUMNS, 128, 64): [(128, 64, 8, 2), (128, 64, 4, 2), (128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 2)],
    (COLUMNS, 128, 128): [(128, 64, 8, 2), (128, 32, 8, 2), (128, 64, 8, 1), (64, 64, 4, 2), (64, 64, 8, 2)],
    (COLUMNS, 64, 64): [(64, 64, 4, 2), (64, 64, 4, 1)],
    (COLUMNS, 64, 128): [(64, 64, 4, 2), (64, 64, 4, 1), (64, 64, 8, 2)],
}

#: kernel, block, head dim or 0, tile.
CONFIGS = [(*case, tile) for case, tiles in TILES.items() for tile in tiles]


def operands(kernel: str, block: int, dim: int, size: int) -> Any:
    """Inputs on the GPU: a layout of density .1 and bf16 arrays."""
    torch.manual_seed(0)
    heads = 16 if dim and size > 2048 else 2 if dim else 1
    layout = random(size // block, block=block, density=0.1, heads=heads)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=DEVICE).bfloat16()

    if kernel == "dsd":
        return layout, normal(1, layout.nnz, block, block), normal(1, 1, size, min(size, 4096))
    if kernel == "sdd":
        return layout, normal(1, 1, size, size), normal(1, 1, size, size)
    return layout, *(normal(1, heads, size, dim) for _ in range(4))


def action(kernel: str, given: Any) -> Any:
    """A function that runs the kernel and returns its results, and their reference."""
    layout: BlockLayout = given[0]
    if kernel == "dsd":
        _, values, d = given
        return (
            lambda: products.block_dsd_op(values, d, layout.key, False, False, "ieee"),
            lambda: layout.to_dense(values.float()) @ d.float(),
        )
    if kernel == "sdd":
        _, x, y = given
        return (
            lambda: products.block_sdd_op(x, y, layout.key, "ieee"),
            lambda: layout.from_dense(x.float() @ y.float()),
        )
    _, q, k, v, g = given
    options = Attention(q.shape[-1] ** -0.5)
    given = {"q": q, "k": k, "v": v, "pad": None, "mask": None}
    if kernel == FORWARD:
        return (
            lambda: attention.block_attention_op(*given.values(), layout.key, *options.plain)[0],
            lambda: reference.attention(q.float(), k.float(), v.float(), None, None, layout, options)[0],
        )
    out, lse = attention.block_attention_op(*given.values(), layout.key, *options.plain)
    given |= {"out": out, "lse": lse, "dout": g, "dlse": None}
    given |= {"delta": (out.float() * g.float()).sum(-1), **{n: torch.empty_like(q) for n in ("dq", "dk", "dv")}}
    made: list[Any] = []

    def run() -> Any:
        if not made:  # with the tile that is asked for
            made.append(attention.Passes(given, layout, options).prepared(kernel, layout, options))
        made[0](given)
        return given["dq"] if kernel == ROWS else torch.cat([given["dk"], given["dv"]])

    def truth() -> Any:
        found = reference.gradients(q.float(), k.float(), v.float(), None, None, g.float(), None, layout, options)
        return found[0] if kernel == ROWS else torch.cat(found[1:])

    return run, truth


def operations(kernel: str, given: Any) -> float:
    """Multiplications and additions."""
    layout: BlockLayout = given[0]
    area = layout.nnz * layout.block**2
    if kernel == "dsd":
        return 2.0 * area * given[2].shape[-1]
    if kernel == "sdd":
        return 2.0 * area * given[1].shape[-1]
    return {FORWARD: 4.0, ROWS: 6.0, COLUMNS: 8.0}[kernel] * area * given[1].shape[-1]


def one(number: int, timed: bool) -> dict[str, Any]:
    """Check or time a configuration."""
    kernel, block, dim, tile = CONFIGS[number]
    given = operands(kernel, block, dim, 16384 if timed else 2048 if DEVICE == "cuda" else 512)
    run, truth = action(kernel, given)
    with matmul_calls.forced(**{kernel: tile}):
        found = run()
        if timed:
            ms = do_bench(run, warmup=20, rep=80)
            return {"ms": round(ms, 4), "tflops": round(operations(kernel, given) / ms / 1e9, 1)}
        want = truth()
        again = run()
    error = ((found.float() - want).norm() / want.norm()).item()
    return {"error": round(error, 6), "ok": bool(error < 0.01 and torch.equal(found, again))}


def work(numbers: list[int], timed: bool) -> None:
    """A worker: a JSON line for each configuration."""
    for number in numbers:
        try:
            result = one(number, timed)
        except Exception as error:
            result = {"ok": False, "failed": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
        print(json.dumps({"number": number, **result}), flush=True)


def supervise(numbers: list[int], timed: bool, end: float) -> dict[int, dict[str, Any]]:
    """Results of a worker on ``numbers``, restarted after one that stalls or dies."""
    found: dict[int, dict[str, Any]] = {}
    left = list(numbers)
    while left and time.time() < end:
        flags = ["--time"] if timed else []
        command = [sys.executable, __file__, "--work", ",".join(map(str, left)), *flags]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_read, args=(process, lines), daemon=True).start()
        while left:
            try:
                line = lines.get(timeout=max(0.1, min(STALL, end - time.time())))
            except queue.Empty:
                line = None
            if line is None:
                break
            record = json.loads(line)
            found[record["number"]] = record
            left.remove(record["number"])
        process.kill()
        if left:
            found[left.pop(0)] = {"ok": False, "failed": "stalled or died"}
    return found


def _read(process: Any, lines: queue.Queue[str | None]) -> None:
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--work")
    parser.add_argument("--time", action="store_true")
    asked = parser.parse_args()
    if asked.work:
        work([int(n) for n in asked.work.split(",")], asked.time)
        return
    end = time.time() + asked.seconds
    wanted = [i for i, c in enumerate(CONFIGS) if not asked.only or c[0] in asked.only.split(",")]
    checked: dict[int, dict[str, Any]] = {}
    shares = [wanted[i :: asked.processes] for i in range(asked.processes)]
    threads = [threading.Thread(target=lambda s=s: checked.update(supervise(s, False, end))) for s in shares if s]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    right = [i for i in wanted if checked.get(i, {}).get("ok")]
    times = supervise(right, True, end)
    for i in wanted:
        kernel, block, dim, tile = CONFIGS[i]
        print(kernel, block, dim, tile, {**checked.get(i, {}), **times.get(i, {})})


if __name__ == "__main__":
    main()
