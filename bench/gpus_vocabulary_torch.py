"""A worker of bench/gpus.py: losses over a vocabulary split over processes in PyTorch, against one GPU."""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import onelaunch.torch as ot
from gpus_vocabulary_jax import CLASSES, padded
from process import emit

HIDDEN = 4_096
Result = tuple[torch.Tensor, ...]
Step = Callable[[], Result]


def main() -> None:
    """Every vocabulary at every width, one process a GPU; the first process reports."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--section", choices=("vocabulary_torch",))
    parser.add_argument("--widths", type=int, nargs="+", required=True)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    for width in options.widths:
        if width > 1:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            mp.spawn(member, (width, port, options.small), nprocs=width)


def member(rank: int, width: int, port: int, small: bool) -> None:
    """One process of the group."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(width))
    device = torch.device("cpu" if small else f"cuda:{rank}")
    if not small:
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if small else "nccl", rank=rank, world_size=width)
    for classes in (96, 101) if small else CLASSES:
        logits_case(rank, width, classes, device, small)
        hidden_case(rank, width, classes, device, small)
    dist.destroy_process_group()


def logits_case(rank: int, width: int, classes: int, device: torch.device, small: bool) -> None:
    """Loss and gradient of logits whose columns are split, against all columns on this device."""
    rows, dtype = (14, torch.float32) if small else (8_192, torch.bfloat16)
    columns = padded(classes)
    logits = 3 * normal((rows, columns), 0, device, dtype)
    labels = labels_of(rows, classes, device)
    mine = logits.chunk(width, 1)[rank].contiguous()
    whole = step(partial(ot.cross_entropy, target=labels, vocab_size=classes), (logits,))
    split = step(partial(ot.cross_entropy, target=labels, vocab_size=classes, group=dist.group.WORLD), (mine,))
    head = {"loss": "cross_entropy", "rows": rows, "classes": classes, "columns": columns}
    report(head, rank, width, whole, split, lambda parts: (parts[0], parts[1].chunk(width, 1)[rank]), device)


def hidden_case(rank: int, width: int, classes: int, device: torch.device, small: bool) -> None:
    """Loss and gradients of a head whose rows are split, against the whole head on this device."""
    rows, size, dtype = (14, 8, torch.float32) if small else (8_192, HIDDEN, torch.bfloat16)
    columns = padded(classes)
    hidden = normal((rows, size), 1, device, dtype)
    weight = normal((columns, size), 2, device, dtype) * 3 / size**0.5
    labels = labels_of(rows, classes, device)
    mine = weight.chunk(width, 0)[rank].contiguous()
    whole = step(partial(ot.linear_cross_entropy, target=labels, vocab_size=classes), (hidden, weight))
    split = step(
        partial(ot.linear_cross_entropy, target=labels, vocab_size=classes, group=dist.group.WORLD), (hidden, mine)
    )
    head = {"loss": "linear_cross_entropy", "rows": rows, "hidden": size, "classes": classes, "columns": columns}
    report(head, rank, width, whole, split, lambda p: (p[0], p[1], p[2].chunk(width, 0)[rank]), device)


def report(
    head: dict[str, Any], rank: int, width: int, whole: Step, split: Step, part: Callable[[Result], Result],
    device: torch.device,
) -> None:  # fmt: skip
    """Compare and time both ways; the largest error of any process and the first one's times and memory are printed."""
    want = [value.clone() for value in part(whole())]
    worst = torch.tensor([difference(a, b) for a, b in zip(split(), want, strict=True)], device=device)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    del want
    rows = [measured(way, device) for way in (whole, split)]
    if rank == 0:
        names = ("loss_error", "gradient_error", "weight_error")
        errors = dict(zip(names, worst.tolist(), strict=False))
        emit({**head, "gpus": 1, "split": False, **rows[0]})
        emit({**head, "gpus": width, "split": True, **rows[1], **errors})


def step(loss: Callable[..., torch.Tensor], leaves: Result) -> Step:
    """A call that gives the loss and the gradients of the leaves."""

    def call() -> Result:
        given = [leaf.detach().requires_grad_() for leaf in leaves]
        value = loss(*given) if len(given) == 1 else loss(given[0], given[1])
        return (value.detach(), *torch.autograd.grad(value, given))

    return call


def measured(call: Step, device: torch.device) -> dict[str, float]:
    """Median of calls, every process at once, and what one takes beyond the memory in use before it."""
    cuda = device.type == "cuda"
    wait: Callable[[], Any] = torch.cuda.synchronize if cuda else (lambda: None)
    call()
    wait()
    base = torch.cuda.memory_allocated() if cuda else 0
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(10):
        dist.barrier()
        wait()
        start = time.perf_counter()
        call()
        wait()
        times.append((time.perf_counter() - start) * 1e3)
    peak = torch.cuda.max_memory_allocated() - base if cuda else 0
    return {"median_ms": statistics.median(times), "peak_gb": peak / 1e9}


def normal(shape: tuple[int, ...], seed: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """The same numbers in every process."""
    source = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=source, device=device, dtype=dtype)


def labels_of(rows: int, classes: int, device: torch.device) -> torch.Tensor:
    """Labels of the whole vocabulary, one in seven ignored."""
    source = torch.Generator(device).manual_seed(3)
    labels = torch.randint(classes, (rows,), generator=source, device=device)
    labels[::7] = -100
    return labels


def difference(got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest difference, as a part of the largest value."""
    largest = want.float().abs().max().clamp(min=torch.finfo(torch.float32).tiny)
    return float((got.float() - want.float()).abs().max() / largest)


if __name__ == "__main__":
    main()
