"""The store keeps what it is given, or says that it has nothing; it never lies and never raises."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from onelaunch import store

ENTRY = {"a": b"x" * 5000, "b": b"", "\u00e9/c": bytes(range(256))}


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("ONELAUNCH_CACHE_DIR", str(tmp_path))
    return tmp_path


def only_file(root: Path) -> Path:
    [path] = [p for p in root.rglob("*") if p.is_file()]
    return path


def test_round_trip(own: Path) -> None:
    name = store.key("kind", 1, "text", {"b": [2]})
    assert store.get(name) is None
    assert store.put(name, ENTRY)
    assert store.get(name) == ENTRY
    assert store.put(name, {})
    assert store.get(name) == {}
    assert store.size() == (1, only_file(own).stat().st_size)


def test_key_depends_on_every_part() -> None:
    parts = [("k", "a", "b"), ("k", "a", "c"), ("k", "ab"), ("k", ["a", "b"]), ("l", "a", "b")]
    assert len({store.key(*p) for p in parts}) == len(parts)
    assert store.key("k", "a", "b") == store.key("k", "a", "b")


@pytest.mark.parametrize("damage", ["empty", "cut", "flip", "longer", "garbage"])
def test_damaged_entry_is_a_miss(own: Path, damage: str) -> None:
    store.put("n", ENTRY)
    path = only_file(own)
    data = path.read_bytes()
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    texts = {"empty": b"", "cut": data[:-1], "flip": flipped, "longer": data + b"x", "garbage": b"{}" * 100}
    path.write_bytes(texts[damage])
    assert store.get("n") is None
    assert not path.exists()
    assert store.put("n", ENTRY)
    assert store.get("n") == ENTRY


def test_unwritable_directory_keeps_nothing(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own / "file").write_text("")
    monkeypatch.setenv("ONELAUNCH_CACHE_DIR", str(own / "file" / "below"))
    assert not store.put("n", ENTRY)
    assert store.get("n") is None
    assert store.prune(0) == 0
    assert store.size() == (0, 0)


def test_prune_removes_what_was_unused_for_longest(own: Path) -> None:
    for name in "abcd":
        store.put(name, {"x": bytes(1000)})
    for i, name in enumerate("abcd"):
        os.utime(next(own.rglob(name)), (i, i))
    store.get("a")
    total = store.size()[1]
    removed = store.prune(total // 2)
    assert removed == total // 2
    assert [name for name in "abcd" if store.get(name)] == ["a", "d"]
    assert store.prune() == 0


def write_and_read(worker: int) -> int:
    """Entries of one repeated byte: a mixture of two writers would show."""
    for _ in range(100):
        store.put("shared", {"who": bytes([worker]) * 20000, "again": bytes([worker])})
        found = store.get("shared")
        if found is not None and set(found["who"]) != set(found["again"]):
            return 1
    return 0


def test_many_processes_at_once(own: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        assert pool.map(write_and_read, range(4)) == [0] * 4
    assert store.get("shared") is not None
    assert not list(own.rglob("*.tmp"))
