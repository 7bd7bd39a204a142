"""The only place that touches JAX's private API; each name is listed with its reason.

PRIVATE lists them for ``tests/test_calls.py``, which checks that every one still exists.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jaxlib
import jaxlib.gpu_triton
from jax._src import source_info_util
from jax.core import ShapedArray
from jax.extend.source_info_util import register_exclusion
from jax.sharding import NamedSharding, PartitionSpec

from onelaunch.errors import Where

PRIVATE = {
    "jax._src.source_info_util.user_frame": "file and line of an equation (jax.extend only gives a summary string)",
    "jax._src.stages.Traced._consts": "the tracers a function closes over: they lead the arguments of its traced jaxpr",
    "jax._src.sharding_impls.ShardingContext.num_devices": "over how many devices XLA spreads what is being lowered",
    "jax._src.sharding_impls.SPMDAxisContext.manual_axes": "the same under shard_map",
    "jax.core.ShapedArray.manual_axis_type": "shard_map's record of the axes along which a value differs",
    "jaxlib.gpu_triton": "importing it registers jaxlib's launcher of Triton kernels with XLA",
}

#: jaxlib's launcher of Triton kernels takes machine code from 0.11.1 on; before, only PTX, which it compiles.
LAUNCHER_TAKES_CUBIN = tuple(int(n) for n in jaxlib.__version__.split(".")[:3]) >= (0, 11, 1)


#: Our own frames are not the user's, where these modules bind primitives.
for _name in ("api.py", "primitive.py", "derive.py", "launch", "nn", "partition"):
    register_exclusion(str(Path(__file__).with_name(_name)))


def user_where(source_info: Any) -> Where | None:
    """The user's file, line and function of an equation, or None where only JAX's own frames are known."""
    frame = source_info_util.user_frame(source_info.traceback)
    if frame is None:
        return None
    return Where(frame.file_name, frame.start_line, frame.function_name)


def closed_over(traced: Any) -> list[Any]:
    """What a traced function closes over and its jaxpr takes as leading arguments: the values of outer traces."""
    return list(traced._consts)


def jit_is_disabled() -> bool:
    """Whether the user runs everything op by op (``jax.disable_jit``); JAX's types don't list its flags."""
    config: Any = jax.config
    return bool(config.jax_disable_jit)


def varying(aval: Any) -> frozenset[Any]:
    """The mesh axes along which a value differs between devices, as ``shard_map`` with ``check_vma`` tracks them."""
    return frozenset(aval.manual_axis_type.varying)


def spread_by_xla(ctx: Any) -> bool:
    """Whether XLA spreads what is being lowered over several devices: but for all that ``shard_map`` does."""
    context = ctx.module_context.axis_context
    mesh = getattr(context, "mesh", None)
    if mesh is not None:
        return any(size > 1 for name, size in mesh.shape.items() if name not in context.manual_axes)
    return (getattr(context, "num_devices", None) or 1) > 1


def devices(arrays: Any) -> int:
    """The greatest number of devices over which one of some arrays (or their types) lies."""
    shardings = (getattr(a, "sharding", None) for a in arrays if not isinstance(a, jax.core.Tracer))
    return max((len(s.device_set) for s in shardings if isinstance(s, jax.sharding.Sharding)), default=1)


def array_like(aval: Any, shape: tuple[int, ...], dtype: Any) -> ShapedArray:
    """An abstract array that differs between the same devices as ``aval``."""
    if not varying(aval):
        return ShapedArray(shape, dtype)
    mesh = NamedSharding(aval.sharding.mesh, PartitionSpec())
    return ShapedArray(shape, dtype, sharding=mesh, manual_axis_type=aval.manual_axis_type)
