"""Generated kernels run in Triton's interpreter, checked; from JAX; and, exported, by themselves."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import pickle
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from onelaunch import build, compat, target
from onelaunch.emit.kernel import Kernel, Param
from onelaunch.launch import export, interpreter, wire
from onelaunch.launch import jax as launch

F32 = np.dtype("float32")
DTYPES = [*build.POINTERS]


def kernel(name: str, arguments: str, body: str, params: tuple[Param, ...], grid: tuple[int, ...] = (1,)) -> Kernel:
    """A kernel from its body."""
    text = "".join(f"    {line}\n" for line in body.splitlines())
    source = f"import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef {name}({arguments}):\n{text}"
    return Kernel(name, source, params, grid)


def array(name: str, role: str, shape: tuple[int, ...] = (4, 8), dtype: Any = F32) -> Param:
    return Param(name, np.dtype(dtype), shape, role)


#: y = x reversed within each program's 8 elements, through scratch memory.
TURN = kernel(
    "turn",
    "x, y, work",
    "base = tl.program_id(0) * 8\n"
    "i = tl.arange(0, 8)\n"
    "tl.store(work + base + i, tl.load(x + base + i))\n"
    "tl.debug_barrier()\n"
    "tl.store(y + base + i, tl.load(work + base + 7 - i))",
    (array("x", "in"), array("y", "out"), array("work", "scratch")),
    (4,),
)
X = np.random.default_rng(0).normal(size=(4, 8)).astype(F32)


def touching(load: int = 0, store: int = 0, where: str = "y") -> Kernel:
    """A kernel of one program that reads x[load] and writes ``where``[store]; both have 4 elements."""
    body = f"tl.store({where} + {store}, tl.load(x + {load}))"
    return kernel("touching", "x, y", body, (array("x", "in", (4,)), array("y", "out", (4,))))


class TestInterpreter:
    @pytest.mark.parametrize("order", ["forward", "reverse", "shuffled"])
    def test_runs_programs_in_any_order(self, order: str) -> None:
        [y] = interpreter.run(TURN, [X], order=order)
        np.testing.assert_array_equal(y, X[:, ::-1])

    def test_orders_differ(self) -> None:
        body = "n = tl.atomic_add(count, 1)\ntl.store(y + tl.program_id(0) * 3 + tl.program_id(1), n)"
        params = (array("count", "in", (), "int32"), array("y", "out", (2, 3), "int32"), array("c", "out", (), "int32"))
        counted = kernel("counted", "count, y, c", body, params, (2, 3))
        zero = np.zeros((), np.int32)
        ran = {
            order: interpreter.run(counted, [zero], aliases={0: 1}, order=order)[0].reshape(-1).tolist()
            for order in ("forward", "reverse", "shuffled")
        }
        assert ran["forward"] == [0, 1, 2, 3, 4, 5]
        assert ran["reverse"] == [5, 4, 3, 2, 1, 0]
        assert sorted(ran["shuffled"]) == ran["forward"] and ran["shuffled"] not in (ran["forward"], ran["reverse"])

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_keeps_every_dtype(self, dtype: np.dtype) -> None:
        params = (array("x", "in", (2, 4), dtype), array("y", "out", (2, 4), dtype))
        copy = kernel("copy", "x, y", "i = tl.arange(0, 8)\ntl.store(y + i, tl.load(x + i))", params)
        x = np.array([[0, 1, 1, 0], [1, 2, 3, 100]]).astype(dtype)
        [y] = interpreter.run(copy, [x])
        assert y.dtype == dtype
        np.testing.assert_array_equal(y, x)

    def test_outputs_and_scratch_start_poisoned(self) -> None:
        params = (array("y", "out", (4,)), array("n", "out", (4,), "int32"), array("work", "scratch", (4,)))
        peek = kernel("peek", "y, n, work", "tl.store(y, tl.load(work))\ntl.store(n, tl.load(n + 3))", params)
        y, n = interpreter.run(peek, [])
        assert np.isnan(y).all()
        assert (n.view(np.uint8) == 0xAB).all()

    @pytest.mark.parametrize("at", [-1, 4, 10**6])
    def test_access_outside_is_refused(self, at: int) -> None:
        with pytest.raises(interpreter.MemoryFault, match=f"byte {4 * at} of 'x'" if at < 5 else "byte"):
            interpreter.run(touching(load=at), [np.ones(4, F32)])
        with pytest.raises(interpreter.MemoryFault, match=r"'touching' touched byte"):
            interpreter.run(touching(store=at), [np.ones(4, F32)])

    def test_masked_access_outside_is_allowed(self) -> None:
        body = "i = tl.arange(0, 8)\ntl.store(y + i, tl.load(x + i, mask=i < 4, other=0.0), mask=i < 4)"
        masked = kernel("masked", "x, y", body, (array("x", "in", (4,)), array("y", "out", (4,))))
        np.testing.assert_array_equal(interpreter.run(masked, [X[0, :4]])[0], X[0, :4])

    def test_writing_to_an_input_is_refused(self) -> None:
        with pytest.raises(interpreter.MemoryFault, match="wrote to its input 'x'"):
            interpreter.run(touching(load=1, store=0, where="x"), [np.arange(4, dtype=F32)])

    def test_unwritten_bool_is_refused(self) -> None:
        flag = kernel("flag", "y", "tl.store(y, 1)", (array("y", "out", (2,), bool),))
        with pytest.raises(interpreter.MemoryFault, match="left a bool of 'y' unwritten"):
            interpreter.run(flag, [])

    def test_aliased_input_is_the_output(self) -> None:
        step = kernel(
            "step", "x, y", "tl.store(y + 1, tl.load(x) + 1)", (array("x", "in", (3,)), array("y", "out", (3,)))
        )
        x = np.array([5, 0, 7], F32)
        [y] = interpreter.run(step, [x], aliases={0: 0})
        np.testing.assert_array_equal(y, [5, 6, 7])
        np.testing.assert_array_equal(x, [5, 0, 7])

    def test_empty_arrays(self) -> None:
        nothing = kernel("nothing", "x, y", "pass", (array("x", "in", (0, 3)), array("y", "out", (2, 0))))
        assert interpreter.run(nothing, [np.zeros((0, 3), F32)])[0].shape == (2, 0)

    def test_wrong_arguments(self) -> None:
        with pytest.raises(TypeError, match="takes 1 arrays, not 2"):
            interpreter.run(TURN, [X, X])
        with pytest.raises(TypeError, match=r"x is float32\[4, 8\], not float64\[4, 8\]"):
            interpreter.run(TURN, [X.astype(np.float64)])
        with pytest.raises(ValueError, match="order is"):
            interpreter.run(TURN, [X], order="sideways")

    def test_library_is_as_before_even_after_a_failure(self) -> None:
        before = {name: id(value) for name, value in vars(interpreter.tl).items()}
        with pytest.raises(interpreter.MemoryFault):
            interpreter.run(touching(load=9), [np.ones(4, F32)])
        assert {name: id(value) for name, value in vars(interpreter.tl).items()} == before


def lowered(function: Any, *args: Any, **options: Any) -> str:
    """StableHLO for a GPU, made on any machine."""
    return str(jax.jit(function, **options).trace(*args).lower(lowering_platforms=("cuda",)).as_text())


class TestJax:
    def test_eager_and_jit_on_cpu(self) -> None:
        x = jnp.asarray(X)
        np.testing.assert_array_equal(launch.call(TURN, x)[0], X[:, ::-1])
        found = jax.jit(lambda x: launch.call(TURN, x + 1)[0] * 2)(x)
        np.testing.assert_array_equal(found, (X + 1)[:, ::-1] * 2)

    def test_in_scan_and_while(self) -> None:
        x = jnp.asarray(X)
        last, _ = jax.jit(lambda x: jax.lax.scan(lambda c, _: (launch.call(TURN, c)[0], None), x, None, length=3))(x)
        np.testing.assert_array_equal(last, X[:, ::-1])
        body = lambda c: (c[0] + 1, launch.call(TURN, c[1])[0])  # noqa: E731
        _, y = jax.jit(lambda x: jax.lax.while_loop(lambda c: c[0] < 2, body, (0, x)))(x)
        np.testing.assert_array_equal(y, X)

    def test_lowers_to_one_custom_call(self) -> None:
        text = lowered(lambda x: launch.call(TURN, x * 2)[0] + 1, X)
        assert text.count(f"@{launch.CALL_TARGET}") == 1
        assert "(tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>)" in text
        assert 'name = "turn"' in text
        assert "output_operand_alias" not in text

    def test_aliases_reach_the_custom_call(self) -> None:
        text = lowered(lambda x: launch.call(TURN, x, aliases={0: 0})[0], X)
        assert "#stablehlo.output_operand_alias<output_tuple_indices = [0], operand_index = 0" in text

    def test_target_may_be_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen = []
        compile = build.compile
        monkeypatch.setattr(build, "compile", lambda k, t: seen.append(str(t)) or compile(k, t))
        monkeypatch.setenv("ONELAUNCH_TARGET", "cuda:80")
        lowered(lambda x: launch.call(TURN, x)[0], X + 1)
        assert seen == ["cuda:80"]

    def test_wrong_arguments(self) -> None:
        with pytest.raises(TypeError, match=r"'turn' takes float32\[4,8\], not float32\[8\]"):
            launch.call(TURN, X[0])
        with pytest.raises(TypeError, match="not nothing"):
            launch.call(TURN)

    def test_order_of_params(self) -> None:
        mixed = dataclasses.replace(TURN, params=(TURN.params[1], TURN.params[0], TURN.params[2]))
        with pytest.raises(ValueError, match="must be inputs, then outputs, then scratch"):
            lowered(lambda x: launch.call(mixed, x)[0], X)


class TestWire:
    def test_kernels_of_one_name_differ(self) -> None:
        """jaxlib keeps modules by name, shared bytes and PTX."""
        other = dataclasses.replace(TURN, source=TURN.source.replace("7 - i", "i"))
        built = [build.compile(k, target.parse("cuda:90")) for k in (TURN, other)]
        messages = [zlib.decompress(wire.kernel_call(TURN, b, with_cubin=True)) for b in built]
        digests = [m[m.index(b"// ") :][:67] for m in messages]
        assert digests[0] != digests[1]
        assert all(b.binary in m for b, m in zip(built, messages, strict=True))

    def test_as_jaxlib_writes_it(self) -> None:
        plugin = next((m for m in (f"jax_cuda{n}_plugin" for n in (13, 12)) if importlib.util.find_spec(m)), None)
        if plugin is None:
            pytest.skip("jaxlib's CUDA plugin is not installed")
        theirs = importlib.import_module(f"{plugin}._triton")
        built = build.compile(TURN, target.parse("cuda:90"))
        function = theirs.TritonKernel("turn", 4, 1, built.metadata["shared"], built.asm["ptx"], "", 90)
        arrays = [theirs.create_array_parameter(0, 16)] * 3
        wanted = theirs.TritonKernelCall(function, 4, 1, 1, arrays).to_proto("turn", b"")
        assert zlib.decompress(wire.kernel_call(TURN, built, with_cubin=False)) == wanted

    def test_jaxlib_launcher_is_registered(self) -> None:
        assert "jaxlib.gpu_triton" in sys.modules
        assert isinstance(compat.LAUNCHER_TAKES_CUBIN, bool)


BOTH = kernel(
    "both",
    "x, m, y, n",
    "i = tl.arange(0, 8)\ntl.store(y + i, tl.load(x + i))\ntl.store(n + i, tl.load(m + i) == 0)",
    (
        array("x", "in", (8,), ml_dtypes.bfloat16),
        array("m", "in", (2, 4), bool),
        array("y", "out", (8,), ml_dtypes.bfloat16),
        array("n", "out", (2, 4), bool),
    ),
)


@pytest.mark.torch
class TestTorch:
    """In a process of its own: PyTorch must not need JAX."""

    def run(self, program: str, cwd: Path, **variables: str) -> None:
        here = Path(__file__).parent
        environment = {**os.environ, "PYTHONPATH": f"{here}:{here.parent / 'src'}", **variables}
        subprocess.run([sys.executable, "-c", program], check=True, cwd=cwd, env=environment)

    def test_cpu_tensors_are_interpreted(self, tmp_path: Path) -> None:
        """The kernels are sent over: importing this module would import JAX."""
        program = f"""
import pickle, sys, torch
from onelaunch.launch import torch as launch
turn, both = pickle.loads({pickle.dumps((TURN, BOTH))!r})
x = torch.randn(4, 8, requires_grad=True)
assert torch.equal(launch.call(turn, x)[0], x.flip(1))
assert torch.equal(launch.call(turn, x.t().contiguous().t())[0], x.flip(1))
x, m = torch.randn(8, dtype=torch.bfloat16), torch.randn(2, 4) > 0
y, n = launch.call(both, x, m)
assert torch.equal(y, x) and torch.equal(n, ~m)
for wrong in [(x,), (x, x), (x.float(), m)]:
    try:
        launch.call(both, *wrong)
    except TypeError:
        continue
    raise AssertionError(wrong)
assert "jax" not in sys.modules
"""
        self.run(program, tmp_path)

    def test_exported_module_stands_alone(self, tmp_path: Path) -> None:
        """Its text, in the interpreter on CPU tensors, in a process that does not see onelaunch."""
        (tmp_path / "turn.py").write_text(export.export(TURN))
        (tmp_path / "both.py").write_text(export.export(BOTH))
        program = """
import both, sys, torch, turn
x = torch.randn(4, 8)
assert torch.equal(turn.launch(x), x.flip(1))
x, m = torch.randn(8, dtype=torch.bfloat16), torch.randn(2, 4) > 0
y, n = both.launch(x, m)
assert torch.equal(y, x) and torch.equal(n, ~m)
assert not {"jax", "onelaunch"} & set(sys.modules)
"""
        self.run(program, tmp_path, TRITON_INTERPRET="1", PYTHONPATH="")


class TestExport:
    @pytest.mark.parametrize("exported", [TURN, BOTH, dataclasses.replace(TURN, grid=(4, 1, 2))], ids=lambda k: k.name)
    def test_passes_the_linter(self, exported: Kernel) -> None:
        text = export.export(exported)
        assert text.startswith("import torch\nimport triton\n")
        for command in (["check", "--select=E,F,W,I,UP,B,SIM"], ["format", "--check"]):
            done = subprocess.run(
                [sys.executable, "-m", "ruff", *command, "--line-length=120", "-"],
                input=text,
                text=True,
                capture_output=True,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr

    def test_without_inputs_a_device_is_named(self) -> None:
        ones = kernel("ones", "y", "tl.store(y + tl.arange(0, 4), 1.0)", (array("y", "out", (4,)),))
        text = export.harness(ones)
        assert text.startswith('def launch(device="cuda"):')
        assert "y = torch.empty((4,), dtype=torch.float32, device=device)" in text

    def test_source_without_triton(self) -> None:
        with pytest.raises(ValueError, match="does not import triton"):
            export.export(dataclasses.replace(TURN, source="def turn(): ..."))
