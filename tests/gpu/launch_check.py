"""Launching on a real GPU: ``PYTHONPATH=src python tests/gpu/launch_check.py [NAME...]``; exit status 1 on any failure.

Each check runs in a process of its own with a time limit, so that one that hangs or crashes costs only itself.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from onelaunch.emit.kernel import Kernel, Param

LIMIT = 150
HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
F32 = np.dtype("float32")
CHECKS: dict[str, Callable[[], str]] = {}


def check(function: Callable[[], str]) -> Callable[[], str]:
    """Register a check: it raises, or returns a remark."""
    CHECKS[function.__name__] = function
    return function


def kernel(
    name: str, arguments: str, body: list[str], params: tuple[Param, ...], grid: tuple[int, ...] = (1,)
) -> Kernel:
    """A kernel from the lines of its body."""
    source = f"{HEAD}def {name}({arguments}):\n" + "".join(f"    {line}\n" for line in body)
    return Kernel(name, source, params, grid)


def plus(amount: int, shape: tuple[int, ...] = (4, 64), dtype: np.dtype = F32, **options: Any) -> Kernel:
    """y = x + amount, or y = not x for bool; always called ``plus``, whatever it adds."""
    size, wide = int(np.prod(shape)), "tl.float64" if dtype == np.float64 else "tl.float32"
    body = ["i = tl.program_id(0) * 64 + tl.arange(0, 64)", f"v = tl.load(x + i, mask=i < {size})"]
    # Triton's interpreter does not know how to add bfloat16.
    value = "v == 0" if dtype.kind == "b" else f"v + {amount}" if dtype.kind in "iu" else f"v.to({wide}) + {amount}"
    body += [f"tl.store(y + i, {value}, mask=i < {size})"]
    params = (Param("x", dtype, shape, "in"), Param("y", dtype, shape, "out"))
    return kernel("plus", "x, y", body, params, (-(-size // 64),), **options)


def turn() -> Kernel:
    """y = x reversed within each program's 64 elements, through scratch memory that other threads read."""
    body = [
        "base = tl.program_id(0) * 64",
        "i = tl.arange(0, 64)",
        "tl.store(work + base + i, tl.load(x + base + i))",
        "tl.debug_barrier()",
        "tl.store(y + base + i, tl.load(work + base + 63 - i))",
    ]
    params = tuple(Param(n, F32, (4, 64), role) for n, role in (("x", "in"), ("y", "out"), ("work", "scratch")))
    return kernel("turn", "x, y, work", body, params, (4,))


def numbers(shape: tuple[int, ...] = (4, 64), dtype: Any = F32) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2 if np.dtype(dtype).kind == "b" else 50, shape).astype(dtype)


def expect(found: Any, wanted: np.ndarray) -> None:
    """Equal, dtype included."""
    found = np.asarray(found)
    assert found.dtype == wanted.dtype, (found.dtype, wanted.dtype)
    np.testing.assert_array_equal(found, wanted)


def jax_modules() -> tuple[Any, Any]:
    import jax

    from onelaunch.launch import jax as launch

    jax.config.update("jax_enable_x64", True)
    return jax, launch


@check
def jax_eager() -> str:
    jax, launch = jax_modules()
    x = jax.numpy.asarray(numbers())
    start = time.perf_counter()
    expect(launch.call(plus(1), x)[0], numbers() + 1)
    first = time.perf_counter() - start
    for amount in range(3):
        expect(launch.call(plus(amount), x)[0], numbers() + np.float32(amount))
    expect(launch.call(turn(), x)[0], numbers()[:, ::-1])
    return f"first call {first:.2f} s; {jax.devices()[0].device_kind}, jax {jax.__version__}"


@check
def jax_jit() -> str:
    """Several kernels of one name in one program, XLA's operations between them, results not waited for."""
    jax, launch = jax_modules()

    @jax.jit
    def run(x: Any) -> Any:
        a = launch.call(plus(1), x * 2)[0]
        b = launch.call(plus(7), a)[0]
        return a + launch.call(turn(), b)[0], a, b

    x = numbers()
    results = [run(jax.numpy.asarray(x + i)) for i in range(20)]
    for i, (total, a, b) in enumerate(results):
        doubled = (x + np.float32(i)) * 2 + 1
        expect(a, doubled)
        expect(b, doubled + 7)
        expect(total, doubled + (doubled + 7)[:, ::-1])
    return ""


@check
def jax_loops() -> str:
    """In scan, in while, and both with many trips."""
    jax, launch = jax_modules()
    step = plus(1)

    @jax.jit
    def scan(x: Any) -> Any:
        return jax.lax.scan(lambda c, _: (launch.call(step, c)[0], c[0, 0]), x, None, length=50)

    @jax.jit
    def loop(x: Any, n: Any) -> Any:
        body = lambda c: (c[0] + 1, launch.call(turn(), launch.call(step, c[1])[0])[0])  # noqa: E731
        return jax.lax.while_loop(lambda c: c[0] < n, body, (0, x))[1]

    x = numbers()
    last, firsts = scan(x)
    expect(last, x + 50)
    expect(firsts, x[0, 0] + np.arange(50, dtype=F32))
    expect(loop(x, 100), x + 100)
    return ""


@check
def jax_dtypes() -> str:
    jax, launch = jax_modules()
    names = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float64"]
    for dtype in [*map(np.dtype, names), np.dtype(ml_dtypes.bfloat16), F32]:
        x = numbers((3, 37), dtype)
        expect(
            launch.call(plus(1, (3, 37), dtype), jax.numpy.asarray(x))[0],
            ~x if dtype.kind == "b" else x + dtype.type(1),
        )
    expect(launch.call(plus(1, (), F32), jax.numpy.float32(2))[0], np.array(3, F32))
    return f"{len(names) + 2} dtypes"


@check
def jax_aliases() -> str:
    """An aliased input that is still needed is copied; a donated one is overwritten."""
    jax, launch = jax_modules()
    step = plus(1)
    both = jax.jit(lambda x: (launch.call(step, x, aliases={0: 0})[0], x * 1))
    new, old = both(numbers())
    expect(new, numbers() + 1)
    expect(old, numbers())
    x = jax.numpy.asarray(numbers())
    where = x.unsafe_buffer_pointer()
    y = jax.jit(lambda x: launch.call(step, x, aliases={0: 0})[0], donate_argnums=0)(x)
    expect(y, numbers() + 1)
    return "in place" if y.unsafe_buffer_pointer() == where else "donated, but not in place"


@check
def jax_shared_memory() -> str:
    """More shared memory than the 48 KiB that every kernel may take, and a 3-D grid."""
    jax, launch = jax_modules()
    body = [
        "i = tl.arange(0, 128)",
        "at = i[:, None] * 128 + i[None, :]",
        "product = tl.dot(tl.load(x + at), tl.load(x + at), input_precision='tf32')",
        "program = tl.program_id(0) + 2 * tl.program_id(1) + 6 * tl.program_id(2)",
        "tl.store(y + program * 16384 + at, product + program)",
    ]
    params = (Param("x", F32, (128, 128), "in"), Param("y", F32, (24, 128, 128), "out"))
    square = kernel("square", "x, y", body, params, (2, 3, 4))
    x = (numbers((128, 128)) % 5).astype(F32)
    expect(jax.jit(lambda x: launch.call(square, x)[0])(x), (x @ x) + np.arange(24, dtype=F32)[:, None, None])
    from onelaunch import build

    return f"{build.compile(square, launch.device_target()).resources}"


@check
def jax_threads() -> str:
    """Compiled and launched from several threads at once."""
    jax, launch = jax_modules()
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: jax.jit(lambda x: launch.call(plus(n), x)[0])(numbers()), range(100, 116)))
    for n, y in enumerate(found):
        expect(y, numbers() + np.float32(100 + n))
    return ""


@check
def torch_launch() -> str:
    import torch

    from onelaunch.launch import torch as launch

    x = torch.from_numpy(numbers()).cuda()
    expect(launch.call(turn(), x)[0].cpu().numpy(), numbers()[:, ::-1])
    expect(launch.call(turn(), x.t().contiguous().t())[0].cpu().numpy(), numbers()[:, ::-1])
    expect(
        launch.call(plus(1, (63,)), torch.arange(64.0, device="cuda")[1:])[0].cpu().numpy(),
        np.arange(2, 65).astype(F32),
    )
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        y = launch.call(plus(3), x)[0]
    stream.synchronize()
    expect(y.cpu().numpy(), numbers() + 3)
    for name in ("bool", "int8", "int64", "uint8", "float16", "float64"):
        dtype = np.dtype(name)
        v = numbers((3, 37), dtype)
        y = launch.call(plus(1, (3, 37), dtype), torch.from_numpy(v).cuda())[0]
        expect(y.cpu().numpy(), ~v if dtype.kind == "b" else v + dtype.type(1))
    y = launch.call(
        plus(1, (3, 37), np.dtype(ml_dtypes.bfloat16)), torch.ones(3, 37, dtype=torch.bfloat16, device="cuda")
    )[0]
    assert y.dtype == torch.bfloat16 and bool((y == 2).all())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = launch.call(plus(3), x)[0]
    x += 1
    graph.replay()
    expect(y.cpu().numpy(), numbers() + 4)
    run = launch.launcher(plus(3))
    return f"launch {per_call(lambda: run(x), torch.cuda.synchronize)[0]:.0f} us; torch {torch.__version__}"


@check
def torch_without_jax() -> str:
    from onelaunch.launch import torch as launch  # noqa: F401

    assert "jax" not in sys.modules
    return ""


@check
def torch_after_jax_triton() -> str:
    """``import jax_triton`` sets TRITON_CACHE_DIR="", with which Triton's own launcher fails."""
    if importlib.util.find_spec("jax_triton") is None:
        return "not installed"
    import jax_triton  # noqa: F401
    import torch

    from onelaunch.launch import torch as launch

    expect(launch.call(plus(9), torch.from_numpy(numbers()).cuda())[0].cpu().numpy(), numbers() + 9)
    return ""


@check
def exported_module() -> str:
    """The exported text runs in a process that knows neither onelaunch nor JAX."""
    from onelaunch.launch import export

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "alone.py").write_text(export.export(turn()))
        program = (
            "import alone, sys, torch\nx = torch.arange(256.0, device='cuda').view(4, 64)\n"
            "assert torch.equal(alone.launch(x), x.flip(1))\nassert not {'jax', 'onelaunch'} & set(sys.modules)\n"
        )
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        subprocess.run([sys.executable, "-c", program], cwd=folder, env=environment, check=True, timeout=LIMIT)
    return ""


def per_call(run: Callable[[], Any], wait: Callable[[], Any] | None = None, calls: int = 1000) -> tuple[float, float]:
    """Microseconds a call: back to back (the queue drained every 50), and waiting for each."""
    import gc

    ready = (lambda y: wait()) if wait else (lambda y: y.block_until_ready())
    for _ in range(20):
        ready(run())
    gc.disable()
    queued, waited = [], []
    for _ in range(calls // 50):
        start = time.perf_counter()
        for _ in range(50):
            y = run()
        queued.append((time.perf_counter() - start) / 50 * 1e6)
        ready(y)
    for _ in range(calls):
        start = time.perf_counter()
        ready(run())
        waited.append((time.perf_counter() - start) * 1e6)
    gc.enable()
    return statistics.median(queued), statistics.median(waited)


def through_ptx(jax: Any, launch: Any, step: Kernel) -> Callable[[Any], Any]:
    """The same kernel through XLA's own PTX call, for comparison: two unused operands stand for Triton's scratch."""
    from jax.extend.core import Primitive
    from jax.interpreters import mlir

    from onelaunch import build

    built = build.compile(step, launch.device_target())
    sizes = dict(zip(("grid_x", "grid_y", "grid_z"), (*step.grid, 1, 1), strict=True))
    sizes |= {"block_x": step.num_warps * 32, "block_y": 1, "block_z": 1, "shared_mem_bytes": built.metadata["shared"]}
    primitive = Primitive("through_ptx")
    primitive.def_abstract_eval(lambda x, *_: jax.core.ShapedArray(x.shape, x.dtype))

    def lower(ctx: Any, *operands: Any) -> Any:
        rule = jax.ffi.ffi_lowering("__gpu$xla.gpu.ptx")
        attributes = {k: np.int32(v) for k, v in sizes.items()}
        text = {"name": step.name, "kernel_type": "ptx", "kernel_data": built.asm["ptx"]}
        return rule(ctx, *operands, **text, **attributes, output_indices=(1,))

    mlir.register_lowering(primitive, lower, platform="cuda")
    return jax.jit(lambda x: primitive.bind(x, x, x))


@check
def overhead() -> str:
    """Microseconds a call, back to back / waiting for each; the goal is 1.5 times an empty jitted function."""
    jax, launch = jax_modules()
    step, x = plus(1), jax.numpy.asarray(numbers())
    ways = {
        "jit(x)": jax.jit(lambda x: x),
        "jit(x + 1)": jax.jit(lambda x: x + 1),
        "kernel in jit": jax.jit(lambda x: launch.call(step, x)[0]),
        "kernel, eager": lambda x: launch.call(step, x)[0],
        "10 kernels in jit": jax.jit(lambda x: [x := launch.call(step, x)[0] for _ in range(10)][-1]),
    }
    rows = [f"{name} {'/'.join(f'{t:.0f}' for t in per_call(lambda: run(x)))}" for name, run in ways.items()]  # noqa: B023
    try:
        ptx = through_ptx(jax, launch, step)
        expect(ptx(x), numbers() + 1)
        rows.append(f"xla.gpu.ptx {'/'.join(f'{t:.0f}' for t in per_call(lambda: ptx(x)))}")
    except Exception as error:  # an experiment, not a requirement
        rows.append(f"xla.gpu.ptx: {str(error)[:300]}")
    return "; ".join(rows) + " us"


@check
def overhead_jax_triton() -> str:
    """The same through jax-triton, for comparison."""
    if importlib.util.find_spec("jax_triton") is None:
        return "not installed"
    import jax_triton

    from onelaunch.load import load

    jax, _ = jax_modules()
    step, x = plus(1), jax.numpy.asarray(numbers())
    function = getattr(load(step.name, step.source, interpret=False), step.name)
    call = lambda x: jax_triton.triton_call(  # noqa: E731
        x, kernel=function, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), grid=step.grid, num_warps=4
    )
    ways = {"in jit": jax.jit(call), "eager": call}
    return "; ".join(f"{n} {'/'.join(f'{t:.0f}' for t in per_call(lambda: f(x)))}" for n, f in ways.items()) + " us"  # noqa: B023


def run_one(name: str) -> tuple[bool, str]:
    """A check in its own process: whether it passed, and its remark or the end of its errors."""
    command = [sys.executable, __file__, "--inside", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return False, f"no end after {LIMIT} s"
    if done.returncode:
        return False, f"status {done.returncode}\n{(done.stdout + done.stderr)[-2500:]}"
    return True, done.stdout.strip().rpartition("\n")[2]


def main(names: list[str]) -> int:
    """Run the named checks, or all; prints a table and returns the exit status."""
    failed = 0
    for name in names or CHECKS:
        start = time.perf_counter()
        passed, remark = run_one(name)
        failed += not passed
        print(f"{name:24} {'ok' if passed else 'FAIL':5} {time.perf_counter() - start:6.1f} s  {remark}", flush=True)
    print(f"{failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        print(CHECKS[sys.argv[2]]())
    else:
        sys.exit(main(sys.argv[1:]))
