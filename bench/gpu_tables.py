"""Tables of bench/gpus.py's record: scaling of ensembles, and losses over a split vocabulary."""

from __future__ import annotations

from typing import Any

from row_tables import markdown

Run = dict[str, Any]


def scaling(run: Run) -> str:
    """Ensembles and the shared gradient: milliseconds and efficiency at each number of GPUs."""
    rows = [r for name in ("ensembles", "gradient", "processes") for r in section(run, name)]
    widths = sorted({r["gpus"] for r in rows})
    cases = list(dict.fromkeys(r["case"] for r in rows))
    body = []
    for case in cases:
        found = {r["gpus"]: r for r in rows if r["case"] == case}
        body.append([case, *(cell(found.get(n)) for n in widths), agreement(list(found.values()))])
    head = ["", *(f"{n} GPU{'s' * (n > 1)}" for n in widths), "against one GPU"]
    return f"{place(run)}\n\n{markdown(head, body)}"


def vocabulary(run: Run) -> str:
    """Losses of both faces: milliseconds on one GPU and split, memory, and the largest differences."""
    body = []
    for face in ("torch", "jax"):
        whole: Run = {}
        for r in section(run, f"vocabulary_{face}"):
            if not r["split"]:
                whole = r
                continue
            names = ("loss_error", "gradient_error", "weight_error")
            errors = ", ".join(f"{r[name]:.0e}" for name in names if name in r)
            memory = f"{whole['peak_gb']:.2f} → {r['peak_gb']:.2f} GB" if "peak_gb" in r else "–"
            padding = f"{r['classes']:,}" + (f" of {r['columns']:,}" if r["columns"] != r["classes"] else "")
            kind = r["loss"].replace("_", " ")
            times = [f"{whole['median_ms']:.2f}", str(r["gpus"]), f"{r['median_ms']:.2f}"]
            body.append(["PyTorch" if face == "torch" else "JAX", kind, padding, *times, memory, errors])
    head = ["", "loss", "classes", "one GPU, ms", "GPUs", "split, ms", "memory of a GPU", "relative differences"]
    return f"{place(run)} 8,192 rows, bf16, forward + gradient.\n\n{markdown(head, body)}"


def section(run: Run, name: str) -> list[Run]:
    """The rows of one section."""
    return run["sections"].get(name, {}).get("rows", [])


def cell(row: Run | None) -> str:
    """Milliseconds and, from two GPUs on, the efficiency."""
    if row is None:
        return "–"
    efficiency = f" ({row['efficiency']:.2f})" if row["gpus"] > 1 and "efficiency" in row else ""
    value = row.get("queued_ms", row["median_ms"])
    return (f"{value:,.0f}" if value >= 100 else f"{value:.3g}") + efficiency


def agreement(rows: list[Run]) -> str:
    """Whether the values were those of one GPU."""
    if any("relative_difference" in r for r in rows):
        return f"within {max(r['relative_difference'] for r in rows):.0e}"
    return "equal" if all(r["equal"] for r in rows) else "**different**"


def place(run: Run) -> str:
    """Where it was measured, and what this machine could not show."""
    machine = run["machine"]
    missing = f" Not run, for want of GPUs: {', '.join(map(str, run['not_run']))}." if run["not_run"] else ""
    versions = machine["versions"]
    shown = f"JAX {versions['jax']}, PyTorch {versions['torch']}, Triton {versions['triton']}; {machine['date'][:10]}"
    return f"{machine['gpus']} × {machine['gpu']}, {shown}.{missing}"
