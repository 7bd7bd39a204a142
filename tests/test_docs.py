"""The documents: their Python runs, their tables are those of the results, their links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from onelaunch.ops import REFUSED

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
# ```python is run; ```py is shown only.
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)")


def python_blocks(path: Path) -> str:
    """The Python of a document as one program."""
    return "\n".join(BLOCK.findall(path.read_text()))


@pytest.mark.parametrize(
    "path", [p for p in DOCUMENTS if python_blocks(p) and p.name != "tour.md"], ids=lambda p: p.name
)
def test_python_of_a_document_runs(path, tmp_path):
    program = tmp_path / "document.py"
    program.write_text(python_blocks(path))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_files(path):
    missing = [link for link in LINK.findall(path.read_text()) if not (path.parent / link).exists()]
    assert missing == []


def test_tables_are_those_of_the_results():
    done = subprocess.run([sys.executable, "bench/table.py", "--check"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout


def test_primitives_are_those_of_the_code():
    command = [sys.executable, "docs/make_primitives.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_every_refusal_says_what_it_would_take():
    notes = (ROOT / "docs" / "notes" / "refused.md").read_text()
    assert [name for name in REFUSED if f"`{name}`" not in notes] == []


def test_tour_is_what_the_stages_give():
    done = subprocess.run([sys.executable, "docs/make_tour.py", "--check"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rows_shown_for_a_new_primitive_are_those_of_the_code():
    shown = re.findall(
        r"^```py\n(.*?)^```", (ROOT / "docs" / "add-a-primitive.md").read_text(), re.DOTALL | re.MULTILINE
    )
    code = "\n".join(path.read_text() for folder in ("src", "tests") for path in (ROOT / folder).rglob("*.py"))
    assert shown and [block for block in shown if block.strip() not in code] == []
