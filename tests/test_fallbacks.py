"""Nothing that fails late, and nothing that users do, is worse than jax.jit: it runs in XLA, and says why."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import onelaunch
from onelaunch import build, single
from onelaunch.errors import BuildError, Refusal
from onelaunch.launch import jax as launch
from test_checks import check

X = jnp.arange(4.0) * 0.25


def steps(x: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 9, lambda _, c: jnp.cos(c) + 0.1 * c.sum(), x)


def line_of(fn: Callable[..., Any]) -> int:
    return inspect.getsourcelines(fn)[1]


@contextmanager
def one_warning(*words: str) -> Iterator[None]:
    """Exactly one warning of ours, which says how to report it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    found = [str(w.message) for w in caught if "onelaunch" in str(w.message)]
    assert len(found) == 1, found
    for word in ("report", *words):
        assert word in found[0]


def for_gpu(fn: Any, *args: Any) -> str:
    """The module that JAX hands to XLA for a GPU."""
    return fn._jitted.trace(*args).lower(lowering_platforms=("cuda",)).as_text()


# --- faults ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["rewrite", "compile_graph", "estimate_us"])
def test_a_fault_before_the_build(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise KeyError("a node nobody placed")

    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    monkeypatch.setattr(single, stage, broken)
    fused = onelaunch.fuse(steps)
    with one_warning("KeyError", "a node nobody placed", f"{__file__}:{line_of(steps)}"):
        got = [fused(X), fused(X), jax.jit(fused)(X)]
    for out in got:
        np.testing.assert_allclose(out, jax.jit(steps)(X), rtol=1e-6)
    (refusal,) = fused.lower(X).refusals
    assert (refusal.stage, fused.lower(X).launches) == ("internal", 0)
    with pytest.raises(onelaunch.FusionError) as caught:
        onelaunch.fuse(steps, fallback="error")(X)
    assert caught.value.stage == "internal" and caught.value.where is not None


def failing_build(*_: Any) -> Any:
    raise BuildError("steps", "ttgir", "out of resource: threads")


def crashing_build(*_: Any) -> Any:
    raise RuntimeError("PassManager::run failed")


def greedy(**taken: int) -> Callable[..., build.Built]:
    resources = dataclasses.replace(build.Resources(32, 0, 0, 4), **taken)
    return lambda kernel, target: build.Built(target, {"ptx": "", "cubin": b""}, resources, {"name": kernel.name})


@pytest.mark.parametrize(
    ("compiled", "words"),
    [
        (failing_build, "threads"),
        (crashing_build, "PassManager"),
        (greedy(shared=300_000), "300,000 bytes of shared memory"),
        (greedy(spilled=1_000_000), "1,000,000 bytes of local memory"),
    ],
)
def test_a_fault_of_the_build(compiled: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "compile", compiled)
    with one_warning(words, "steps"):
        assert "triton" not in for_gpu(onelaunch.fuse(steps), X)
    with pytest.raises(onelaunch.FusionError, match=words) as caught:
        for_gpu(onelaunch.fuse(steps, fallback="error"), X)
    assert caught.value.stage == "build"


def test_a_part_that_does_not_build_is_left_to_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_second(kernel: Any, target: Any) -> Any:
        return real(kernel, target) if kernel.name.endswith("_2") else failing_build()

    real = build.compile
    monkeypatch.setattr(build, "compile", only_second)
    fused = onelaunch.fuse(lambda x: steps(jnp.fft.fft(steps(x)).real))
    with one_warning("_1"):
        text = for_gpu(fused, X)
    assert text.count("triton_kernel_call") == 1


LAUNCH = (
    "INTERNAL: jaxlib/gpu/triton_kernels.cc:402: operation gpuLaunchKernel(...) failed: "
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"
)


def test_a_kernel_that_does_not_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise jax.errors.JaxRuntimeError(LAUNCH)

    fused = onelaunch.fuse(steps)
    fused._jitted = fails
    with one_warning("OUT_OF_RESOURCES", f"{__file__}:{line_of(steps)}"):
        got = [fused(X), fused(X)]
    for out in got:
        np.testing.assert_allclose(out, jax.jit(steps)(X))
    strict = onelaunch.fuse(steps, fallback="error")
    strict._jitted = fails
    with pytest.raises(onelaunch.FusionError) as caught:
        strict(X)
    assert (caught.value.stage, caught.value.what) == ("launch", "steps")


def test_errors_of_the_users_program_are_the_users() -> None:
    def fails(x: Any) -> Any:
        raise ValueError("not today")

    fused = onelaunch.fuse(lambda x: jax.pure_callback(fails, x, x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(jax.errors.JaxRuntimeError, match="not today"):
            jax.block_until_ready(fused(X))


# --- what a kernel can't hold ------------------------------------------------------------------------------


def test_state_that_no_gpu_holds_is_refused_with_its_bytes() -> None:
    def history(x: jax.Array) -> jax.Array:
        start = jnp.zeros((30_000_000, 2000), jnp.float32)
        return lax.fori_loop(0, 30_000_000, lambda i, h: h.at[i].set(h[i - 1] * 0.5 + x), start)[-1].sum()

    (refusal,) = onelaunch.fuse(history).lower(jnp.float32(1)).refusals
    assert refusal.stage == "limits" and refusal.where is not None and refusal.where.line == line_of(history)
    assert "000,000,000 of them for its state" in refusal.why and f"has {launch.memory_bytes():,}" in refusal.why


def test_arrays_beyond_32_bit_offsets_are_refused() -> None:
    long = jax.ShapeDtypeStruct((2**31,), np.int8)
    (refusal, *_) = onelaunch.fuse(lambda x: x.sum()).lower(long).refusals
    assert refusal.stage == "limits" and "2,147,483,648" in refusal.why


# --- what users do -----------------------------------------------------------------------------------------


def test_float0_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")
    nothing = np.zeros(3, jax.dtypes.float0)
    for fn in (lambda x, n: steps(x), lambda x, n: (steps(x), n)):
        fused = onelaunch.fuse(fn)
        got, want = fused(X, nothing), jax.jit(fn)(X, nothing)
        assert jax.tree.structure(got) == jax.tree.structure(want)
        for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert (x.dtype, x.shape) == (y.dtype, y.shape)
            if x.dtype != jax.dtypes.float0:
                np.testing.assert_allclose(x, y, rtol=1e-6)
        assert fused.lower(X, nothing).launches == 1
    assert onelaunch.fuse(lambda x, n: steps(x), fallback="error").lower(X, nothing).refusals == ()


def test_small_dtypes_pass_beside_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")

    def fn(x: jax.Array, n: jax.Array) -> Any:
        return steps(x + n.astype(jnp.float32)), n

    for n in (jnp.arange(4).astype(jnp.int4), X.astype(jnp.float8_e4m3fn)):
        fused = onelaunch.fuse(fn)
        got, want = fused(X, n), jax.jit(fn)(X, n)
        np.testing.assert_allclose(got[0], want[0], rtol=1e-6)
        assert got[1].dtype == n.dtype
        low = fused.lower(X, n)
        assert low.launches == 1 and low.refusals[0].stage == "trace"


def test_symbolic_shapes_stay_in_xla() -> None:
    (size,) = jax.export.symbolic_shape("n")
    struct = jax.ShapeDtypeStruct((size,), jnp.float32)
    fused = onelaunch.fuse(steps)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exported = jax.export.export(fused, platforms=["cpu", "cuda"])(struct)
    np.testing.assert_allclose(exported.call(X), jax.jit(steps)(X), rtol=1e-6)
    (refusal,) = fused.lower(struct).refusals
    assert refusal.stage == "trace" and "(n,)" in refusal.why and refusal.where is not None


def test_references_and_ordered_effects_have_reasons() -> None:
    def referring(x: jax.Array) -> jax.Array:
        ref = jax.new_ref(x)
        ref[...] = jnp.sin(ref[...])
        return ref[...]

    def ordered(x: jax.Array) -> jax.Array:
        jax.debug.callback(print, x, ordered=True)
        return x

    def sharded(x: jax.Array) -> jax.Array:
        return jnp.sin(jax.lax.with_sharding_constraint(x, jax.sharding.SingleDeviceSharding(jax.devices()[0])))

    for fn in (referring, ordered):
        refusal = onelaunch.fuse(fn).lower(X).refusals[0]
        assert refusal.stage == "trace" and "internal" not in refusal.why and refusal.fix
        assert refusal.where is not None and refusal.where.file == __file__
        np.testing.assert_allclose(onelaunch.fuse(fn)(X), jax.jit(fn)(X))
    assert onelaunch.fuse(sharded).lower(X).refusals == ()


def test_every_error_has_its_fields() -> None:
    error = onelaunch.FusionError(Refusal(None, "fft", "why", "fix", "trace"))
    assert (error.stage, error.where, error.what, error.why, error.fix) == ("trace", None, "fft", "why", "fix")


def test_limits_of_known_targets() -> None:
    for name in ("cuda:80", "cuda:90", "cuda:120", "hip:gfx942"):
        target = onelaunch.target.parse(name)
        within = build.Built(target, {}, build.Resources(255, 0, 60_000, 4), {})
        build.check_limits("k", within)
        with pytest.raises(BuildError, match="shared memory"):
            build.check_limits("k", dataclasses.replace(within, resources=build.Resources(255, 0, 400_000, 4)))


def test_memory_is_that_of_the_device() -> None:
    assert launch.memory_bytes() > 10**9


def test_a_check_in_the_test_of_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONELAUNCH_INTERPRET", "1")

    def fn(x: jax.Array) -> jax.Array:
        return lax.while_loop(lambda c: check(c, c[0] > 99, jnp.int32(1)).sum() < 40, lambda c: steps(c) + 2 * c, x + 1)

    fused = onelaunch.fuse(fn)
    refusal = fused.lower(X).refusals[0]
    assert (refusal.stage, refusal.what) == ("trace", "while") and "test has a check" in refusal.why
    np.testing.assert_allclose(fused(X), jax.jit(fn)(X), rtol=1e-5)
