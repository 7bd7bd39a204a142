"""Times linear cross-entropy, forward and backward, and its peers on one GPU: milliseconds and peak memory.

    python bench/linear.py [--limit SECONDS] [--only CONTENDER ...] [--tokens N ...] [--chunk N ...] [--small]

bf16 hidden states and weight, H = 4,096, V = 128,256, gradients of both. Every contender runs in a process of its own
under a time limit, all at once, each timed while the others wait; one that can't be imported is left out with its
reason. Runs are queued, as a training loop does, and the cache is emptied before each. "products" are the three matrix
products alone, on whole logits: what any such loss takes at least. "onelaunch" is timed at its own choice of chunks and
at those of --chunk. The result is bench/results/linear-GPU.json, written as contenders end; ``of_products`` is the
share of the time that the products take, ``extra_bytes`` the peak of memory beside the inputs, ``gradient_bytes`` what
the two gradients need.
"""

from __future__ import annotations

import argparse
import importlib
import re
import statistics
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from typing import Any

import machine
from process import RESULTS, emit, exclusive, run_worker, write_json

CONTENDERS = ("products", "torch", "liger", "quack", "cce", "onelaunch")
TOKENS = (1024, 2048, 4096, 8192, 16384)
FEATURES, CLASSES = 4096, 128256
IGNORED = 7  # one token in so many
#: Tokens whose loss and gradient are compared with float32's.
CHECKED = 256
RUNS = 15


@dataclass(frozen=True)
class Case:
    """What is timed; chunk is for onelaunch alone (None: its own choice)."""

    tokens: int
    features: int
    classes: int
    chunk: int | None = None


def contender(name: str, case: Case) -> Callable[..., Any]:
    """The loss of (hidden, weight, target); raises what its import raises."""
    import torch.nn.functional as F

    if name == "torch":
        return lambda x, w, t: F.cross_entropy(F.linear(x, w), t)
    if name == "liger":
        functional = importlib.import_module("liger_kernel.transformers.functional")
        return lambda x, w, t: functional.liger_fused_linear_cross_entropy(x, w, t)
    if name == "quack":
        chunked = importlib.import_module("quack.linear_cross_entropy").chunked_linear_cross_entropy
        return lambda x, w, t: chunked(x, w, t, ignore_index=-100, reduction="mean")
    if name == "cce":
        cut = importlib.import_module("cut_cross_entropy").linear_cross_entropy
        return lambda x, w, t: cut(x, w, t)
    ours = importlib.import_module("onelaunch.torch").linear_cross_entropy
    return lambda x, w, t: ours(x, w, t, chunk=case.chunk)


def products(case: Case) -> Callable[[], Any]:
    """The three matrix products alone."""
    x, w, _ = arrays(case)

    def run() -> Any:
        logits = x @ w.t()
        return logits @ w, logits.t() @ x

    return run


def arrays(case: Case) -> tuple[Any, Any, Any]:
    """Hidden states, weight, labels."""
    import torch

    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*shape: int, scale: float) -> Any:
        return torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(0, scale, generator=generator)

    x, w = normal(case.tokens, case.features, scale=1.0), normal(case.classes, case.features, scale=0.02)
    target = torch.randint(0, case.classes, (case.tokens,), device="cuda", generator=generator)
    target[::IGNORED] = -100
    return x, w, target


def errors(loss: Callable[..., Any], x: Any, w: Any, target: Any) -> dict[str, float]:
    """Loss: difference; gradients: norm of the difference over norm; against float32 on the first tokens."""
    import torch
    import torch.nn.functional as F

    few = target[:CHECKED]
    found, want = ([p.detach().requires_grad_() for p in (x[:CHECKED], w)] for _ in range(2))
    wide = [p.float() for p in want]
    a, b = loss(*found, few), F.cross_entropy(wide[0] @ wide[1].t(), few)
    grads = zip(torch.autograd.grad(a, found), torch.autograd.grad(b, wide))
    norms = [float((g.float() - h).norm() / h.norm()) for g, h in grads]
    return {"loss_error": abs(float(a) - float(b)), "hidden_error": norms[0], "weight_error": norms[1]}


def measure(run: Callable[[], Any], flush: Any) -> dict[str, float]:
    """Milliseconds by device events."""
    import torch

    run()
    events = []
    for _ in range(RUNS):
        flush.zero_()
        pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        pair[0].record()
        run()
        pair[1].record()
        events.append(pair)
    torch.cuda.synchronize()
    times = [start.elapsed_time(stop) for start, stop in events]
    low, middle, high = statistics.quantiles(times, n=4)
    return {"median_ms": middle, "low_ms": low, "high_ms": high, "runs": RUNS}


def one(name: str, case: Case, flush: Any) -> dict[str, Any]:
    """Errors, peak memory and times."""
    import torch

    if name == "products":
        return measure(products(case), flush)
    x, w, target = arrays(case)
    loss = contender(name, case)
    record: dict[str, Any] = errors(loss, x, w, target)
    leaves = [x.requires_grad_(), w.requires_grad_()]

    def both() -> Any:
        return torch.autograd.grad(loss(*leaves, target), leaves)

    both()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    both()
    torch.cuda.synchronize()
    record["extra_bytes"] = torch.cuda.max_memory_allocated() - before
    record["gradient_bytes"] = 2 * (x.numel() + w.numel())
    return record | measure(both, flush)


def work(name: str, cases: list[Case]) -> None:
    """All cases of one contender; each a JSON line."""
    import torch

    flush = torch.empty(2**28, dtype=torch.int8, device="cuda")
    for case in cases:
        record: dict[str, Any] = {"contender": name, **asdict(case)}
        try:
            with exclusive():  # warm-up and tuning as well: they would slow another's runs
                record |= one(name, case, flush)
        except Exception as failure:
            record["status"] = f"{type(failure).__name__}: {failure}"[:300]
        torch.cuda.empty_cache()
        emit(record)


def shares(records: list[dict[str, Any]]) -> None:
    """Each record's ``of_products``."""
    floor = {r["tokens"]: r["median_ms"] for r in records if r["contender"] == "products" and "median_ms" in r}
    for record in records:
        if "median_ms" in record and record["tokens"] in floor:
            record["of_products"] = floor[record["tokens"]] / record["median_ms"]


def main() -> None:
    """Supervise the workers, or be one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=150.0, help="seconds for each contender, waiting included")
    parser.add_argument("--only", nargs="*", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--tokens", nargs="*", type=int, default=TOKENS)
    parser.add_argument("--chunk", nargs="*", type=int, default=[])
    parser.add_argument("--small", action="store_true", help="a quick trial of the script")
    parser.add_argument("--worker", choices=CONTENDERS)
    options = parser.parse_args()
    sizes = (64, 1000) if options.small else (FEATURES, CLASSES)
    if options.worker:
        chunks = [None, *options.chunk] if options.worker == "onelaunch" else [None]
        work(options.worker, [Case(t, *sizes, c) for t in options.tokens for c in chunks if c is None or c <= t])
        return
    where = machine.describe()
    if where["gpu"] == "none":
        sys.exit("bench/linear.py needs a GPU")
    peers = {name: machine.version(name) for name in ("liger-kernel", "quack-kernels", "cut-cross-entropy")}
    records: list[dict[str, Any]] = []
    status: dict[str, str] = {}
    passed = ["--tokens", *map(str, options.tokens), "--chunk", *map(str, options.chunk)]
    passed += ["--small"] if options.small else []
    slug = re.sub(r"[^a-z0-9]+", "-", str(where["gpu"]).lower()).strip("-")
    path = RESULTS / f"linear-{slug}.json"
    with tempfile.NamedTemporaryFile() as lock, ThreadPoolExecutor(len(options.only)) as pool:
        env = {"BENCH_LOCK": lock.name}
        jobs = {
            pool.submit(run_worker, "linear.py", ["--worker", name, *passed], options.limit, env): name
            for name in options.only
        }
        for job in as_completed(jobs):
            name, outcome = jobs[job], job.result()
            records += outcome.records
            status[name] = outcome.status
            print(f"{name}: {outcome.status}, {len(outcome.records)} cases", flush=True)
            records.sort(key=lambda r: (CONTENDERS.index(r["contender"]), r["tokens"], r["chunk"] or 0))
            shares(records)
            write_json(path, {"machine": where, "peers": peers, "status": status, "results": records})
    print(f"written: {path}")
    for r in records:
        shown = f"{r['median_ms']:.3f} ms, {r.get('extra_bytes', 0) / 1e9:.2f} GB" if "median_ms" in r else r["status"]
        print(r["contender"], r["tokens"], r["chunk"] or "", shown, f"{r.get('of_products', 0):.2f}")


if __name__ == "__main__":
    main()
