"""A generated kernel → machine code, by Triton's compiler; needs no GPU."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import triton
from triton._C.libtriton import get_cache_invalidating_env_vars, ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

from onelaunch import ptx, store
from onelaunch.emit.kernel import Kernel
from onelaunch.errors import BuildError
from onelaunch.ir.types import BFLOAT16
from onelaunch.load import arg_names, load, mode
from onelaunch.target import Target

#: Element type of a pointer in a Triton signature, by the array's dtype.
POINTERS: dict[np.dtype, str] = {
    np.dtype(bool): "i8",
    **{np.dtype(f"int{n}"): f"i{n}" for n in (8, 16, 32, 64)},
    **{np.dtype(f"uint{n}"): f"u{n}" for n in (8, 16, 32, 64)},
    np.dtype("float16"): "fp16",
    BFLOAT16: "bf16",
    np.dtype("float32"): "fp32",
    np.dtype("float64"): "fp64",
}

#: Pointers are multiples of this many bytes: XLA's and PyTorch's buffers are, and launchers check.
ALIGNMENT = 16

#: What is compiled for where no GPU says otherwise.
DEFAULT_TARGET = Target("cuda", "90")

#: Tensor accesses times operations squared from which coalescing is left out (about a second of it).
COALESCING_LIMIT = 10**8

#: Of the entries in the store; another number makes the old ones unknown.
_FORMAT = 3

_METADATA = ("name", "shared", "num_warps", "num_ctas", "num_stages", "global_scratch_size", "tmem_size")


@dataclass(frozen=True)
class Resources:
    """What one program takes: registers and bytes of local memory (spills, stack) a thread; shared bytes; warps."""

    registers: int
    spilled: int
    shared: int
    num_warps: int


@dataclass(frozen=True)
class Built:
    """Machine code and each stage on the way (``asm``: ttir, ttgir, llir, then ptx and cubin, or amdgcn and hsaco)."""

    target: Target
    asm: dict[str, str | bytes]
    resources: Resources
    metadata: dict[str, Any]

    @property
    def binary(self) -> bytes:
        """The cubin or hsaco."""
        code = self.asm["cubin" if self.target.backend == "cuda" else "hsaco"]
        assert isinstance(code, bytes)
        return code


def compile(kernel: Kernel, target: Target) -> Built:
    """The kernel's machine code for ``target``, from the store if it is known. Raises BuildError, naming the stage."""
    key = _key(kernel, target)
    if (entry := store.get(key)) is not None:
        return _from_entry(target, entry)
    built = _compile(kernel, target)
    store.put(key, _to_entry(built))
    return built


#: Bytes that one program can have: of shared memory by architecture, and of local memory a thread on any.
SHARED = {"75": 65_536, "80": 166_912, "86": 101_376, "87": 166_912, "89": 101_376, "90": 232_448, "100": 232_448}
SHARED_ELSEWHERE, SHARED_OF_AMD, LOCAL = 101_376, 65_536, 512 * 1024


def check_limits(name: str, built: Built) -> None:
    """Raises BuildError, stage "limits", for a kernel that no launch on its target can succeed with."""
    where, r = built.target, built.resources
    shared = SHARED.get(where.arch, SHARED_ELSEWHERE) if where.backend == "cuda" else SHARED_OF_AMD
    if r.shared > shared:
        why = f"one program takes {r.shared:,} bytes of shared memory, and {where} has {shared:,}"
        raise BuildError(name, "limits", why)
    if r.spilled > LOCAL:
        why = f"one thread takes {r.spilled:,} bytes of local memory, and a GPU has {LOCAL:,}"
        raise BuildError(name, "limits", why)


def front(kernel: Kernel, target: Target = DEFAULT_TARGET) -> str:
    """Triton's front end alone: the kernel's TTIR as text. Quick; raises BuildError as ``compile`` would."""
    return str(_Pipeline(kernel, target).module)


class _Pipeline:
    """One run of Triton's stages over a kernel."""

    def __init__(self, kernel: Kernel, target: Target):
        self.kernel, self.target = kernel, target
        arch: int | str = int(target.arch) if target.backend == "cuda" else target.arch
        gpu = GPUTarget(target.backend, arch, target.warp_size)
        self.backend = make_backend(gpu)
        self.options = self.backend.parse_options(_options(kernel))
        self.context = ir.context()
        ir.load_dialects(self.context)
        self.backend.load_dialects(self.context)
        self.metadata: dict[str, Any] = {"target": gpu, "hash": "", **self.options.__dict__}
        with mode(interpret=False):
            self.source = _ast_source(kernel)
            self.module = self.front(gpu)

    def front(self, gpu: GPUTarget) -> Any:
        """Python to TTIR; the only stage that needs Triton's own library compiled."""
        functions = self.backend.get_codegen_implementation(self.options)
        try:
            return self.source.make_ir(gpu, self.options, functions, self.backend.get_module_map(), self.context)
        except Exception as error:
            raise BuildError(self.kernel.name, "ast to ttir", _message(error)) from error

    def run(self) -> dict[str, str | bytes]:
        """The text or bytes of every stage."""
        stages: dict[str, Any] = {}
        self.backend.add_stages(stages, self.options, self.source.language)
        asm: dict[str, str | bytes] = {}
        for name, stage in stages.items():
            if name == "ttgir" and coalescing_is_slow(str(asm["ttir"])):
                self.backend.make_ttgir = without_coalescing(type(self.backend).make_ttgir)
            try:
                self.module = stage(self.module, self.metadata)
            except Exception as error:
                raise BuildError(self.kernel.name, name, _message(error)) from error
            if name == "ptx":
                self.module = ptx.repaired(str(self.module))
            asm[name] = self.module if isinstance(self.module, bytes) else str(self.module)
        return asm


def coalescing_is_slow(ttir: str) -> bool:
    """Whether Triton's coalescing pass would take seconds: it walks the program, squared, for each tensor access."""
    accesses = len(re.findall(r"tt\.(?:load|store|atomic_rmw)\b[^\n]*: tensor", ttir))
    operations = len(re.findall(r"^\s+(?:%|tt\.|scf\.)", ttir, re.MULTILINE))
    return accesses * operations**2 > COALESCING_LIMIT


def without_coalescing(stage: Callable[..., Any]) -> Callable[..., Any]:
    """A backend's TTGIR stage without that pass: lanes along the last dim still read neighbouring elements."""
    passes = stage.__globals__.get("passes")
    if passes is None or not hasattr(passes.ttgpuir, "add_coalesce"):
        return stage
    kept = {name: getattr(passes.ttgpuir, name) for name in dir(passes.ttgpuir) if not name.startswith("__")}
    others = {name: getattr(passes, name) for name in dir(passes) if not name.startswith("__")}
    inner = SimpleNamespace(**{**kept, "add_coalesce": lambda _pm: None})
    names = {**stage.__globals__, "passes": SimpleNamespace(**{**others, "ttgpuir": inner})}
    return FunctionType(stage.__code__, names, stage.__name__, stage.__defaults__, stage.__closure__)


def _compile(kernel: Kernel, target: Target) -> Built:
    pipeline = _Pipeline(kernel, target)
    asm = pipeline.run()
    metadata = {name: pipeline.metadata.get(name) for name in _METADATA}
    if metadata["global_scratch_size"]:
        raise BuildError(kernel.name, "metadata", "the kernel wants scratch memory that launchers do not give")
    read = _cuda_resources if target.backend == "cuda" else _hip_resources
    return Built(target, asm, read(kernel, asm, metadata), metadata)


def _ast_source(kernel: Kernel) -> ASTSource:
    function = getattr(load(kernel.name, kernel.source, interpret=False), kernel.name, None)
    if function is None:
        raise BuildError(kernel.name, "load", "its module does not define it")
    names = arg_names(function)
    if len(names) != len(kernel.params):
        raise BuildError(kernel.name, "load", f"takes {len(names)} arguments, but {len(kernel.params)} are declared")
    attributes = {(i,): [["tt.divisibility", ALIGNMENT]] for i in range(len(names))}
    return ASTSource(function, dict(zip(names, _signature(kernel), strict=True)), attrs=attributes)


def _key(kernel: Kernel, target: Target) -> str:
    """Everything that the machine code depends on."""
    versions = [_FORMAT, triton.__version__, get_cache_invalidating_env_vars()]
    return store.key("built", versions, kernel.name, kernel.source, _signature(kernel), str(target), _options(kernel))


def _signature(kernel: Kernel) -> list[str]:
    unknown = [p for p in kernel.params if p.dtype not in POINTERS]
    if unknown:
        raise BuildError(
            kernel.name, "signature", f"{unknown[0].name} has dtype {unknown[0].dtype}, which Triton has not"
        )
    return [f"*{POINTERS[p.dtype]}" for p in kernel.params]


def _options(kernel: Kernel) -> dict[str, Any]:
    return {
        "num_warps": kernel.num_warps,
        "num_stages": kernel.num_stages,
        "enable_fp_fusion": kernel.fp_fusion,
        **({"maxnreg": kernel.registers} if kernel.registers else {}),
    }


def _message(error: Exception) -> str:
    """The error and what caused it: Triton wraps the reason inside a helper in one error a call."""
    parts: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(parts) < 8:
        parts.append(f"{type(cause).__name__}: {cause}".strip())
        cause = cause.__cause__
    return "\n".join(parts)


def _cuda_resources(kernel: Kernel, asm: dict[str, str | bytes], metadata: dict[str, Any]) -> Resources:
    cubin = asm["cubin"]
    assert isinstance(cubin, bytes)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(path)]
        text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    entry = text.partition(f"Function {kernel.name}:")[2]
    found = {
        name: int(value)
        for name, value in re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", entry.partition("Function")[0])
    }
    if "REG" not in found:
        raise BuildError(kernel.name, "resources", f"cuobjdump gave no usage: {text[:200]!r}")
    return Resources(
        registers=found["REG"],
        spilled=found.get("STACK", 0) + found.get("LOCAL", 0),
        shared=int(metadata["shared"]),
        num_warps=int(metadata["num_warps"]),
    )


def _hip_resources(kernel: Kernel, asm: dict[str, str | bytes], metadata: dict[str, Any]) -> Resources:
    text = str(asm["amdgcn"])
    found = {name: int(value) for name, value in re.findall(r"^\s*\.(\w+):\s+(\d+)\s*$", text, re.MULTILINE)}
    if "vgpr_count" not in found:
        raise BuildError(kernel.name, "resources", "the assembly carries no metadata")
    return Resources(
        registers=found["vgpr_count"],
        spilled=found.get("private_segment_fixed_size", 0),
        shared=int(metadata["shared"]),
        num_warps=int(metadata["num_warps"]),
    )


def _to_entry(built: Built) -> dict[str, bytes]:
    entry = {f"asm/{name}": code if isinstance(code, bytes) else code.encode() for name, code in built.asm.items()}
    facts = {
        "text": [name for name, code in built.asm.items() if isinstance(code, str)],
        "resources": dataclasses.asdict(built.resources),
        "metadata": built.metadata,
    }
    return {**entry, "facts.json": json.dumps(facts).encode()}


def _from_entry(target: Target, entry: dict[str, bytes]) -> Built:
    facts = json.loads(entry["facts.json"])
    asm: dict[str, str | bytes] = {}
    for name, code in entry.items():
        stage = name.removeprefix("asm/")
        if stage != name:
            asm[stage] = code.decode() if stage in facts["text"] else code
    return Built(target, asm, Resources(**facts["resources"]), facts["metadata"])
