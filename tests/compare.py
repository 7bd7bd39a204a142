"""agree: outputs of a row against JAX's, within the row's tolerance."""

from __future__ import annotations

import ml_dtypes
import numpy as np


def agree(got: np.ndarray, want: np.ndarray, ulps: float, floor: float, what: str) -> None:
    """Assert equal dtype, shape and values: integers exactly, floats within ``ulps`` (see ``rows.row.Row``)."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape), (
        f"{what}: {got.dtype}{got.shape}, {want.dtype}{want.shape}"
    )
    if got.dtype.kind == "c":
        agree(got.real, want.real, ulps, floor, f"{what} (real)")
        agree(got.imag, want.imag, ulps, floor, f"{what} (imag)")
        return
    if got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want, what)
        return
    info = ml_dtypes.finfo(got.dtype)
    eps, tiny = float(info.eps), float(info.tiny)
    x, y = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(x), np.isnan(y), f"{what}: NaN")
    finite = np.isfinite(y)
    np.testing.assert_array_equal(x[~finite & ~np.isnan(y)], y[~finite & ~np.isnan(y)], f"{what}: infinities")
    scale = np.maximum(np.abs(y[finite]), floor * np.max(np.abs(y[finite]), initial=0))
    error = np.abs(x[finite] - y[finite])
    bad = error > ulps * eps * scale + tiny
    worst = np.max(error / (eps * scale + tiny), initial=0)
    assert not bad.any(), f"{what}: {worst:.1f} ulps\n{x[finite][bad][:5]}\n{y[finite][bad][:5]}"
