"""bench/gpus.py rehearsed on forced host devices and processes: every section runs and its values are one device's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def rehearse(tmp_path: Path, *sections: str) -> dict:
    out = tmp_path / "gpus.json"
    command = [sys.executable, "bench/gpus.py", "--small", "--gpus", "1", "2", "--limit", "400", "--out", str(out)]
    subprocess.run([*command, "--only", *sections], cwd=ROOT, check=True, capture_output=True, text=True)
    record = json.loads(out.read_text())
    assert [record["sections"][name]["status"] for name in sections] == ["ok"] * len(sections)
    return {name: record["sections"][name]["rows"] for name in sections}


def test_a_shared_gradient_and_a_start_of_two_processes(tmp_path):
    found = rehearse(tmp_path, "gradient", "processes")
    assert [row["gpus"] for row in found["gradient"]] == [1, 2]
    assert found["gradient"][1]["relative_difference"] < 1e-6
    (row,) = found["processes"]
    assert row["equal"] and (row["devices"], row["here"]) == (2, 1)


@pytest.mark.slow
@pytest.mark.torch
def test_ensembles_and_split_vocabularies(tmp_path):
    found = rehearse(tmp_path, "ensembles", "vocabulary_jax", "vocabulary_torch")
    assert len(found["ensembles"]) == 6 and all(row["equal"] for row in found["ensembles"])
    for face in ("jax", "torch"):
        errors = [row[name] for row in found[f"vocabulary_{face}"] for name in row if name.endswith("_error")]
        assert len(errors) == 10 and max(errors) < 2e-6
