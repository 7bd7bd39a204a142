"""Largest error of every device function of floats against mpmath, and the table in docs/numerics.md.

    python bench/accuracy.py [--points N] [--write]

The functions run in Triton's interpreter; a GPU differs by the contraction of a product and a sum into one rounding.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mpmath as mp
import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from onelaunch.launch.interpreter import run  # noqa: E402
from scalar_cases import kernel  # noqa: E402

Real = Callable[..., object]


@dataclass(frozen=True)
class Probe:
    """A function, its true value, and the ranges it is tried on (one a dtype where they differ)."""

    name: str
    truth: Real
    f32: tuple[tuple[float, float], ...]
    f64: tuple[tuple[float, float], ...] = ()
    second: tuple[float, float] | None = None
    note: str = ""


def gammainc_slope(a: mp.mpf, x: mp.mpf) -> mp.mpf:
    return mp.diff(lambda b: mp.gammainc(b, 0, x, regularized=True), a)


def i_scaled(n: int) -> Real:
    return lambda x: mp.besseli(n, x) * mp.exp(-abs(x))


PROBES = (
    Probe("exp", mp.exp, ((-87, 88.7), (-1, 1)), ((-708, 709), (-1, 1))),
    Probe("exp2", lambda x: mp.mpf(2) ** x, ((-126, 127.9), (-1, 1)), ((-1022, 1023.9), (-1, 1))),
    Probe("expm1", mp.expm1, ((-20, 88), (-1, 1), (-1e-3, 1e-3)), ((-40, 709), (-1, 1), (-1e-3, 1e-3))),
    Probe("log", mp.log, ((1e-38, 1e38), (0.5, 2)), ((1e-307, 1e307), (0.5, 2))),
    Probe("log1p", mp.log1p, ((-0.9999, 10), (-1e-3, 1e-3), (1, 1e30)), ((-0.9999, 10), (-1e-3, 1e-3), (1, 1e30))),
    Probe("logistic", lambda x: 1 / (1 + mp.exp(-x)), ((-87, 30), (-2, 2)), ((-708, 40), (-2, 2))),
    Probe("rsqrt", lambda x: 1 / mp.sqrt(x), ((1e-37, 1e37), (0.1, 10))),
    Probe("cbrt", mp.cbrt, ((1e-37, 1e37), (0.1, 10))),
    Probe("sin", mp.sin, ((-10, 10), (-1e6, 1e6))),
    Probe("cos", mp.cos, ((-10, 10), (-1e6, 1e6))),
    Probe("tan", mp.tan, ((-10, 10), (-1e6, 1e6))),
    Probe("asin", mp.asin, ((-1, 1), (-0.1, 0.1))),
    Probe("acos", mp.acos, ((-1, 1), (0.99, 1))),
    Probe("atan", mp.atan, ((-10, 10), (-1e6, 1e6), (-0.1, 0.1))),
    Probe("atan2", mp.atan2, ((-10, 10), (-1e-20, 1e-20)), second=(-10, 10)),
    Probe("sinh", mp.sinh, ((-89, 89), (-1, 1)), ((-710, 710), (-1, 1))),
    Probe("cosh", mp.cosh, ((-89, 89), (-1, 1)), ((-710, 710), (-1, 1))),
    Probe("tanh", mp.tanh, ((-10, 10), (-1, 1), (-1e-3, 1e-3)), ((-22, 22), (-1, 1), (-1e-3, 1e-3))),
    Probe("asinh", mp.asinh, ((-10, 10), (-1e-2, 1e-2), (1, 1e30))),
    Probe("acosh", mp.acosh, ((1, 10), (1, 1.01), (1, 1e30))),
    Probe("atanh", mp.atanh, ((-0.9999, 0.9999), (-1e-2, 1e-2))),
    Probe("erf", mp.erf, ((-4, 4), (-1e-2, 1e-2)), ((-6, 6), (-1e-2, 1e-2))),
    Probe("erfc", mp.erfc, ((-4, 9.1), (0.3, 0.7)), ((-6, 26), (0.3, 0.7))),
    Probe("erf_inv", mp.erfinv, ((-0.9, 0.9),), note="as XLA; towards +-1 the rounding of x² counts"),
    Probe("lgamma", lambda x: mp.log(abs(mp.gamma(x))), ((0.001, 100), (0.5, 3), (1e2, 1e6)), note="x > 0"),
    Probe("digamma", mp.digamma, ((0.001, 100), (1, 2), (1e2, 1e6)), note="x > 0"),
    Probe("bessel_i0e", i_scaled(0), ((-8, 8), (8, 100), (100, 600))),
    Probe("bessel_i1e", i_scaled(1), ((-8, 8), (8, 100), (100, 600))),
    Probe("pow", mp.power, ((0.01, 10), (0.999, 1.001)), ((0.001, 100), (0.999, 1.001)), second=(-30, 30)),
    Probe("logaddexp", lambda x, y: mp.log(mp.exp(x) + mp.exp(y)), ((1, 50),), second=(1, 50)),
    Probe("igamma", lambda a, x: mp.gammainc(a, 0, x, regularized=True), ((0.1, 20),), second=(0.1, 30)),
    Probe("igammac", lambda a, x: mp.gammainc(a, x, mp.inf, regularized=True), ((0.1, 20),), second=(0.1, 30)),
    Probe("zeta", mp.zeta, ((1.1, 10),), second=(0.1, 20)),
    Probe("polygamma", lambda n, x: mp.psi(2, x), ((2, 2),), second=(0.1, 20), note="second derivative"),
)


def points(low: float, high: float, count: int, dtype: np.dtype, seed: int) -> np.ndarray:
    """Random inputs: evenly spread, or by magnitude where the range spans many."""
    rng = np.random.default_rng(seed)
    if low > 0 and high / low > 1e3:
        return np.exp(rng.uniform(np.log(low), np.log(high), count)).astype(dtype)
    return rng.uniform(low, high, count).astype(dtype)


def error(probe: Probe, dtype: np.dtype, span: tuple[float, float], count: int) -> tuple[float, list[float]]:
    """Largest error in units of the last place of the true value, and where."""
    args = [points(*span, count, dtype, 1)]
    if probe.second is not None:
        args.append(points(*probe.second, count, dtype, 2))
    (got,) = run(kernel([(probe.name, args, [dtype])]), args)
    worst, where = 0.0, [0.0]
    info = np.finfo(dtype)
    for i in range(count):
        operands = [float(a[i]) for a in args]
        true = probe.truth(*(mp.mpf(x) for x in operands))
        size = max(abs(float(true)), float(info.tiny))
        unit = 2.0 ** (np.frexp(size)[1] - 1 - info.nmant)
        if size > float(info.max) or not np.isfinite(got[i]):
            continue
        distance = float(abs(mp.mpf(float(got[i])) - true) / mp.mpf(unit))
        if distance > worst:
            worst, where = distance, operands
    return worst, where


def table(count: int) -> str:
    """The accuracy table as Markdown."""
    mp.mp.dps = 34
    rows = ["| function | f32: ulp | at | f64: ulp | at | |", "|---|---|---|---|---|---|"]
    for probe in PROBES:
        cells = []
        for dtype, spans in ((np.dtype("float32"), probe.f32), (np.dtype("float64"), probe.f64 or probe.f32)):
            worst, where = max(error(probe, dtype, span, count) for span in spans)
            cells += [f"{worst:.2f}", ", ".join(f"{x:.6g}" for x in where)]
        rows.append(f"| `{probe.name}` | {' | '.join(cells)} | {probe.note} |")
        print(rows[-1], flush=True)
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=2048)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    text = table(options.points)
    if options.write:
        page = ROOT / "docs" / "numerics.md"
        head, _, tail = page.read_text().partition("<!-- accuracy -->\n")
        page.write_text(f"{head}<!-- accuracy -->\n{text}<!-- end -->\n{tail.partition('<!-- end -->' + chr(10))[2]}")


if __name__ == "__main__":
    main()
