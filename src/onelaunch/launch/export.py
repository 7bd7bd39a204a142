"""A generated kernel as a module of its own, whose ``launch(*tensors)`` runs it without onelaunch or JAX."""

from __future__ import annotations

from onelaunch.emit.kernel import Kernel, Param


def export(kernel: Kernel) -> str:
    """The kernel's module with ``harness`` appended and PyTorch imported: a file that stands alone."""
    head, found, tail = kernel.source.partition("import triton\n")
    if not found:
        raise ValueError(f"the module of {kernel.name!r} does not import triton")
    return f"{head}import torch\n{found}{tail.rstrip()}\n\n\n{harness(kernel)}"


def harness(kernel: Kernel) -> str:
    """Text of ``launch(*tensors)``: allocates outputs and scratch beside the inputs and launches the kernel.

    It needs ``torch`` and the kernel in scope. On CPU tensors it runs in Triton's interpreter (TRITON_INTERPRET=1).
    """
    inputs = [p for p in kernel.params if p.role == "in"]
    outputs = [p for p in kernel.params if p.role == "out"]
    own = [inputs.pop(), outputs.pop()] if kernel.counter else []
    names = [p.name for p in inputs]
    device = f"{names[0]}.device" if names else "device"
    parameters = ", ".join(names) or 'device="cuda"'
    lines = [f"def launch({parameters}):", *_docstring(inputs, outputs)]
    lines += [_allocation(p, device) for p in kernel.params if p.role != "in" and p not in own]
    if own:
        lines.append(f"    {own[0].name} = {own[1].name} = torch.zeros((1,), dtype=torch.int32, device={device})")
    guard = f"torch.cuda.device_of({names[0]})" if names else f"torch.device({device})"
    grid = f"({', '.join(map(str, kernel.grid))}{',' if len(kernel.grid) == 1 else ''})"
    options = f"num_warps={kernel.num_warps}, num_stages={kernel.num_stages}, enable_fp_fusion={kernel.fp_fusion}"
    lines += [f"    with {guard}:", f"        {kernel.name}[{grid}]("]
    lines += [f"            {_pointer(p)}," for p in kernel.params]
    lines += [f"            {option}," for option in options.split(", ")] + ["        )"]
    return "\n".join([*lines, f"    return {', '.join(p.name for p in outputs) or 'None'}"]) + "\n"


def _docstring(inputs: list[Param], outputs: list[Param]) -> list[str]:
    lines = ['    """Run the kernel on this device\'s current stream.', ""]
    lines += [f"    {p.name}: {_type(p)}" for p in inputs]
    lines += [f"    returns {p.name}: {_type(p)}" for p in outputs]
    return [*lines, '    """']


def _allocation(param: Param, device: str) -> str:
    return f"    {param.name} = torch.empty({param.shape}, dtype=torch.{param.dtype.name}, device={device})"


def _pointer(param: Param) -> str:
    whole = f"{param.name}.contiguous()" if param.role == "in" else param.name
    return f"{whole}.view(torch.int8)" if param.dtype == bool else whole


def _type(param: Param) -> str:
    return f"{param.dtype.name}[{', '.join(map(str, param.shape))}]"
