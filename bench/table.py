"""Makes the tables of README.md and docs/ from bench/results, between `<!-- bench:NAME -->` and `<!-- /bench -->`.

    python bench/table.py            write the tables and bench/results/times.svg
    python bench/table.py --check    change nothing; exit 1 where a file disagrees with the results

The newest bench-*.json of a GPU is used. Where nothing was measured yet, the table says so.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gpu_tables
import row_tables
from process import RESULTS, ROOT

NOT_YET = "*Not measured yet: `make bench` on a machine with a GPU fills this table.*"
MARKED = re.compile(r"(<!-- bench:([a-z_]+) -->\n).*?(<!-- /bench -->)", re.DOTALL)
Record = dict[str, Any]


def newest(pattern: str) -> dict[str, Any] | None:
    """The newest result file of a pattern that was measured on a GPU or, for programs-small, anywhere."""
    found = [json.loads(path.read_text()) for path in sorted(RESULTS.glob(pattern))]
    found = [run for run in found if run["machine"]["gpu"] != "none" or "small" in pattern]
    return max(found, key=lambda run: run["machine"]["date"], default=None)


def rows(run: dict[str, Any], benchmark: str) -> dict[str, dict[str, Record]]:
    """case -> contender -> record of one benchmark, in the order measured."""
    table: dict[str, dict[str, Record]] = {}
    for record in run["results"]:
        if record["benchmark"] == benchmark and "case" in record:
            table.setdefault(record["case"], {})[record["contender"]] = record
    return table


def markdown(head: list[str], body: list[list[str]]) -> str:
    """A markdown table."""
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def machine_line(run: dict[str, Any]) -> str:
    """Where and with what a run was measured."""
    m, v = run["machine"], run["machine"]["versions"]
    where = f"{m['gpu']} (driver {m['driver']}), {m['cpu']}, {m['cores']} cores"
    return f"{where}; JAX {v['jax']}, Triton {v['triton']}, Python {m['python']}; {m['date'][:10]}. Medians."


def ms(record: Record | None) -> str:
    """A time in milliseconds with three digits, and the note on how it was measured."""
    if record is None or "median_ms" not in record:
        return "–"
    value = record["median_ms"]
    text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{text} ({record['note']})" if record.get("note") else text


def megabytes(record: Record | None) -> str:
    """Peak memory in MB."""
    peak = (record or {}).get("peak_bytes")
    return "–" if peak is None else f"{peak / 1e6:,.0f}"


def kernels(record: Record | None) -> str:
    """Kernels a call launched, by the profiler, and their time on the device."""
    if record is None or "kernels" not in record:
        return "–"
    return f"{record['kernels']:g}, {record['device_ms']:.3g} ms"


def correct(record: Record | None) -> str:
    """What the check of the result found."""
    if record is None or "max_error" not in record:
        return "–"
    keys = {True: "keys equal, ", False: "**keys differ**, "}.get(record.get("keys_equal", None), "")
    return f"{keys}{record['max_error']:.1e}"


def time_table(run: dict[str, Any], benchmark: str, what: str) -> str:
    """Times in ms of all contenders of one benchmark."""
    table = rows(run, benchmark)
    static = any("xla_static" in r for r in table.values())
    head = [what, "XLA", *(["XLA, n static"] if static else []), "CPU", "onelaunch", "kernels, device time"]
    head += ["peak MB XLA / ours", "error"]
    body = []
    for case, r in table.items():
        times = [ms(r.get("xla")), *([ms(r.get("xla_static"))] if static else []), ms(r.get("cpu"))]
        ours = r.get("ours")
        memory = f"{megabytes(r.get('xla'))} / {megabytes(ours)}"
        body.append([case, *times, f"**{ms(ours)}**", kernels(ours), memory, correct(ours)])
    return markdown(head, body)


def others_table(run: dict[str, Any]) -> str:
    """The single-size examples in one table."""
    names = {"logistic": "logistic map", "gru": "GRU", "metropolis": "Metropolis", "fixed_point": "fixed point"}
    body = []
    for benchmark, title in names.items():
        for case, r in rows(run, benchmark).items():
            ours = r.get("ours")
            times = [ms(r.get("xla")), ms(r.get("cpu")), f"**{ms(ours)}**"]
            body.append([f"{title}: {case}", *times, kernels(ours), correct(ours)])
    return markdown(["example", "XLA", "CPU", "onelaunch", "kernels, device time", "error"], body)


def overhead_table(run: dict[str, Any]) -> str:
    """Cost of a call."""
    calls = {case: r["call"] for case, r in rows(run, "overhead").items()}
    body = [[case, f"{r['queued_us']:.1f}", f"{r['median_ms'] * 1e3:.1f}"] for case, r in calls.items()]
    return markdown(["call", "queued, us", "blocked, us"], body)


def compile_table(run: dict[str, Any]) -> str:
    """Cold compilation of each example and of the two large programs."""
    body = []
    for name in dict.fromkeys(r["benchmark"] for r in run["results"]):
        first = next((r["ours"] for r in rows(run, name).values() if "ours" in r), None)
        if first and "compile_s" in first:
            xla = next((r["xla"] for r in rows(run, name).values() if "xla" in r), {})
            xla_s = f"{xla['compile_s']:.2f}" if "compile_s" in xla else "–"
            body.append([name, f"{first['lower_s']:.2f}", f"{first['compile_s']:.2f}", xla_s])
    return markdown(["program", "to source, s", "to machine code, s", "XLA, s"], body)


def times_of(benchmark: str, what: str) -> Callable[[dict[str, Any]], str]:
    """The table of one benchmark."""
    return lambda run: time_table(run, benchmark, what)


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "machine": machine_line,
    "sampler": times_of("sampler", "chains"),
    "lorenz": times_of("lorenz", "trajectories"),
    "others": others_table,
    "overhead": overhead_table,
    "compile": compile_table,
}


def coverage() -> str:
    """The programs of tests/programs: launches, refusals, agreement, and times where they were measured."""
    small, real = newest("programs-small.json"), newest("programs-gpu.json")
    run = real or small
    if run is None:
        return "*Not measured yet: `make coverage` fills this table.*"
    at_small = {r["case"]: r for r in (small or run)["results"]}
    at_real = {r["case"]: r for r in real["results"]} if real else {}
    body = [coverage_row(at_small.get(name, {}), at_real.get(name, {}), name) for name in sorted(at_small | at_real)]
    one = sum(one_launch(at_real.get(name) or at_small[name]) for name in sorted(at_small | at_real))
    head = [
        "program",
        "launches, XLA",
        "launches, onelaunch",
        "at small size",
        "at real size",
        "XLA, ms",
        "onelaunch, ms",
    ]
    where = machine_line(real) if real else "No GPU run yet: launches and agreement at small size, in the interpreter."
    where += f" {run['note']}" if "note" in run else ""
    few = sum(one_launch(r) for r in at_small.values())
    sizes = f"**{one} of {len(body)} in one launch at real size, {few} of {len(at_small)} at small size**"
    why = "(the others would be slower as one kernel, and stay in XLA)."
    return f"{sizes} {why} {where}\n\n{markdown(head, body)}\n\n{causes(at_small | at_real)}"


def one_launch(record: Record) -> bool:
    """Whether a program became one kernel."""
    return record.get("launches") == 1 and not record.get("refusals")


def coverage_row(small: Record, real: Record, name: str) -> list[str]:
    """One program."""
    record = real or small
    launches = str(record.get("launches", "–")) + (" + XLA" if record.get("refusals") else "")
    return [
        f"`{name}`",
        str(real.get("xla_launches", "–")),
        launches,
        verdict(small),
        verdict(real),
        ms(real.get("xla")) if "xla" in real or "xla_launches" not in real else "not run",
        ms(real.get("ours")),
    ]


def verdict(record: Record) -> str:
    """Agreement with jax.jit as words."""
    if not record:
        return "–"
    if "problems" not in record:
        return record["status"].replace("|", "/")[:80]
    if record["problems"]:
        return f"**{record['problems'][0]}**".replace("|", "/")
    return f"agrees ({record['worst']:.0e})" if record["compared"] == "full" else "types agree"


def causes(records: dict[str, Record]) -> str:
    """Why the others are not one launch."""
    others = {name: r for name, r in records.items() if not one_launch(r)}
    if not others:
        return "Every program is one launch."
    lines = ["Not one launch, and why:", ""]
    for name, record in sorted(others.items()):
        whys = dict.fromkeys(f"{r['what']}: {r['why']}" for r in record.get("refusals", ()))
        lines.append(f"- `{name}`: {'; '.join(whys) or record['status']}")
    return "\n".join(lines)


def linear() -> str:
    """Linear cross-entropy: times and memory of every contender, and the time of the products alone."""
    run = newest("linear-*.json")
    if run is None:
        return "*Not measured yet: `python bench/linear.py` on a machine with a GPU fills this table.*"
    found = {(r["contender"], r["tokens"]): r for r in run["results"] if r["chunk"] is None and "median_ms" in r}
    names = list(dict.fromkeys(name for name, _ in found))
    body = []
    for tokens in sorted({t for _, t in found}):
        cells = [f"{tokens:,}"]
        for record in (found.get((name, tokens)) for name in names):
            memory = f", {record['extra_bytes'] / 1e9:.1f} GB" if record and "extra_bytes" in record else ""
            cells.append(ms(record) + memory)
        body.append(cells)
    failed = {r["contender"]: r["status"].split(".")[0] for r in run["results"] if r["contender"] not in names}
    shown = "".join(f" Failed: {name} ({why})." for name, why in failed.items())
    return f"{machine_line(run)}{shown}\n\n{markdown(['tokens', *names], body)}"


def block_softmax() -> str:
    """Block-sparse softmax: share of the copy ceiling of every contender."""
    run = newest("block-sparse-*.json")
    if run is None:
        return "*Not measured yet: `python bench/block_sparse.py` on a machine with a GPU fills this table.*"
    return row_tables.block_softmax(run)


def block_products() -> str:
    """Rates of block-sparse products, times of attention."""
    run = newest("block-matmul-*.json")
    if run is None:
        return "*Not measured yet: `python bench/block_matmul.py` on a machine with a GPU fills this table.*"
    return row_tables.block_products(run)


def several(made: Callable[[dict[str, Any]], str]) -> str:
    """A table of bench/gpus.py's newest record."""
    run = newest("gpus-*.json")
    return made(run) if run else "*Not measured yet: `python bench/gpus.py` on a machine with GPUs fills this table.*"


def cost() -> str:
    """The estimates that decide between a kernel and XLA beside what was measured, programs of both sorts."""
    real, path = newest("programs-gpu.json"), RESULTS / "estimates.json"
    if real is None or not path.exists():
        return "*Not measured yet: `bench/estimates.py`, and `bench/programs.py` on a machine with a GPU.*"
    measured = {r["case"]: r for r in real["results"] if "xla" in r}
    found = [r for r in json.loads(path.read_text())["results"] if r["case"] in measured and "kernels" in r]
    body = [
        cost_row(r, measured[r["case"]]) for r in sorted(found, key=lambda r: (r["whole"], r["kernels"], r["case"]))
    ]
    head = ["program", "decision", "ours, estimate", "ours, measured", "XLA, estimate", "XLA, measured", "right"]
    wrong = sum(row[-1] == "**no**" for row in body)
    where = machine_line(real)
    note = "Estimates are of the model as it is, times of the run named; milliseconds."
    return f"{len(body)} programs, {wrong} decided wrongly. {where} {note}\n\n{markdown(head, body)}"


def cost_row(estimate: Record, measured: Record) -> list[str]:
    """One program: whether it is a kernel, the numbers behind that, and whether measurement agrees."""
    kernels, whole = estimate["kernels"], estimate["whole"]
    decision = "one kernel" if whole else f"{kernels} kernel(s) + XLA" if kernels else "XLA"
    as_run = (measured.get("launches"), not measured.get("refusals")) == (kernels, whole)
    ours = measured.get("ours" if kernels else "kernel") if as_run else None
    time, xla = (ours or {}).get("median_ms"), measured["xla"]["median_ms"]
    right = "–" if time is None else "yes" if (time * 0.95 <= xla if kernels else xla <= time / 0.95) else "**no**"
    guess = estimate["ours_ms"] if kernels else estimate["kernel_ms"]
    shown = ["–" if x is None else f"{x:,.0f}" if x >= 100 else f"{x:.2g}" for x in (guess, estimate["xla_ms"])]
    return [f"`{estimate['case']}`", decision, shown[0], ms(ours), shown[1], ms(measured["xla"]), right]


def row_kernels(
    made: Callable[[Record], str], pattern: str = "rows-[!j]*.json", script: str = "rows.py"
) -> Callable[[], str]:
    """A table of bench/rows.py's run, or of another script's."""

    def table() -> str:
        run = newest(pattern)
        return (
            made(run)
            if run
            else f"*Not measured yet: `python bench/{script}` on a machine with a GPU fills this table.*"
        )

    return table


#: Tables from result files of their own.
OWN: dict[str, Callable[[], str]] = {
    "cases": coverage,
    "linear": linear,
    "block_softmax": block_softmax,
    "block_products": block_products,
    "scaling": partial(several, gpu_tables.scaling),
    "vocabulary": partial(several, gpu_tables.vocabulary),
    "cost": cost,
    "softmax_rows": row_kernels(row_tables.softmax),
    "entropy_rows": row_kernels(row_tables.cross_entropy),
    "jax_rows": row_kernels(row_tables.in_jax, "rows-jax-*.json", "rows_jax.py"),
}


def filled(text: str) -> str:
    """A document with its marked tables made anew."""
    run = newest("bench-*.json")

    def table(found: re.Match[str]) -> str:
        name = found[2]
        if name in OWN:
            made = OWN[name]()
        else:
            made = TABLES[name](run) if run else NOT_YET
        return f"{found[1]}{made}\n{found[3]}"

    return MARKED.sub(table, text)


def plot(run: dict[str, Any], path: Path) -> None:
    """Bars of XLA and onelaunch for every case of a run, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "onelaunch"
    from matplotlib import pyplot

    names = [n for n in dict.fromkeys(r["benchmark"] for r in run["results"]) if n != "overhead"]
    pairs = [(f"{n} {case}", r) for n in names for case, r in rows(run, n).items() if "median_ms" in r.get("ours", {})]
    figure, axis = pyplot.subplots(figsize=(8, 0.45 * len(pairs) + 1), layout="constrained")
    for offset, (who, label) in enumerate((("ours", "onelaunch"), ("cpu", "JAX, CPU"), ("xla", "JAX, GPU"))):
        found = [(i, r[who]["median_ms"]) for i, (_, r) in enumerate(pairs) if "median_ms" in r.get(who, {})]
        axis.barh([i + 0.27 * (1 - offset) for i, _ in found], [t for _, t in found], 0.26, label=label)
    axis.set_yticks(range(len(pairs)), [label for label, _ in pairs])
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlabel(f"milliseconds a call, {run['machine']['gpu']}, less is better")
    axis.legend()
    figure.savefig(path, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    options = parser.parse_args()
    stale = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text()
        made = filled(text)
        if made != text:
            stale.append(path)
            if not options.check:
                path.write_text(made)
    for path in stale:
        print(f"{path.relative_to(ROOT)}: {'disagrees with bench/results' if options.check else 'tables written'}")
    run = newest("bench-*.json")
    if run and not options.check:
        plot(run, RESULTS / "times.svg")
    run = newest("rows-[!j]*.json")
    if run and not options.check:
        row_tables.plot(run, RESULTS / "rows.svg")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
