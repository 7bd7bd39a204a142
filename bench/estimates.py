"""What the cost model says of every program of tests/programs at real size, on any machine: nothing is run.

    python bench/estimates.py [--only NAME ...] [--limit SECONDS]

The record goes to bench/results/estimates.json; bench/table.py puts it beside the times of programs-gpu.json in
docs/notes/cost.md. Run it again after every change of the model.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

from process import RESULTS, emit, load_file, run_worker, write_json
from programs import PROGRAMS, SETTINGS, library, names


def estimates(name: str) -> dict[str, Any]:
    """One program in this process: the decision, and the estimates behind it in milliseconds."""
    import onelaunch

    fn, args = load_file(PROGRAMS / f"{name}.py").make()
    low = onelaunch.fuse(fn).lower(*args)
    found = low.explain(compile=False)
    one = low.fused.kernel_us or None
    return {
        "case": name,
        "kernels": low.launches,
        "whole": low.fused.kernel is not None,
        "stages": sorted({r.stage for r in low.refusals}),
        "kernel_ms": None if one is None else one / 1e3,
        "ours_ms": found.us_after / 1e3 if low.launches else None,
        "xla_ms": found.before.us / 1e3 if math.isfinite(found.before.us) else None,
        "launches": found.launches_before if math.isfinite(found.launches_before) else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", metavar="NAME", help="programs (default: all)")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one program")
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        emit(estimates(options.one))
        return
    path = RESULTS / "estimates.json"
    records = []
    for name in options.only or names():
        if missing := library(name):
            records.append({"case": name, "status": f"{missing} is not installed"})
            continue
        outcome = run_worker("estimates.py", ["--one", name], options.limit, SETTINGS | {"JAX_PLATFORMS": "cpu"})
        record = outcome.records[-1] if outcome.records else {"case": name}
        records.append(record | {"status": outcome.status})
        print(records[-1], flush=True)
    if not options.only:
        write_json(path, {"results": records})


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
