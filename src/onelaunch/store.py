"""What is worth keeping between processes, on disk: compiled kernels, plans, timings.

An entry is a few named byte strings. It is one file, written whole and then renamed into place, and ends in a checksum:
a reader sees all of it or none, and a damaged entry is a miss. No function raises because of the disk; where the
directory can't be written nothing is kept. ``ONELAUNCH_CACHE_DIR`` names another directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import platformdirs

_MAGIC = b"onelaunch-1\n"
_DIGEST = hashlib.sha256().digest_size

#: ``prune`` lets the entries take this many bytes unless told otherwise.
DEFAULT_LIMIT = 2 << 30


def root() -> Path:
    """The store's directory; it may not exist."""
    return Path(os.environ.get("ONELAUNCH_CACHE_DIR") or platformdirs.user_cache_dir("onelaunch"))


def key(kind: str, *parts: Any) -> str:
    """Name of an entry: a hash of ``kind``, of ``parts`` (which JSON can hold) and of this program's versions."""
    versions = [_version("onelaunch"), list(sys.version_info[:3])]
    text = json.dumps([kind, versions, parts], sort_keys=True)
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:40]}"


def get(name: str) -> dict[str, bytes] | None:
    """The entry called ``name``, or None where there is none or it is damaged."""
    path = _path(name)
    try:
        data = path.read_bytes()
    except OSError:
        return None
    entry = _decode(data)
    if entry is None:
        _remove(path)
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return entry


def put(name: str, entry: Mapping[str, bytes]) -> bool:
    """Write an entry whole, replacing what is there; False where it can't be written."""
    try:
        write(_path(name), _encode(entry))
    except OSError:
        return False
    return True


def write(path: Path, data: bytes) -> None:
    """Put a whole file in place at once; other processes see the old one or the new one. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        _remove(Path(temporary))
        raise


def prune(limit: int = DEFAULT_LIMIT) -> int:
    """Remove the entries unused for longest until at most ``limit`` bytes are left; returns the bytes removed."""
    files = []
    for path in list(_entries().glob("*/*")) + list((root() / "source").glob("*")):
        try:
            status = path.stat()
        except OSError:
            continue
        files.append((status.st_mtime, status.st_size, path))
    left = sum(size for _, size, _ in files)
    removed = 0
    for _, size, path in sorted(files):
        if left - removed <= limit:
            break
        removed += size if _remove(path) else 0
    return removed


def size() -> tuple[int, int]:
    """Number of entries and the bytes that they take."""
    sizes = []
    for path in _entries().glob("*/*"):
        try:
            sizes.append(path.stat().st_size)
        except OSError:
            continue
    return len(sizes), sum(sizes)


def _entries() -> Path:
    return root() / "entries"


def _path(name: str) -> Path:
    digest = hashlib.sha256(name.encode()).hexdigest()[:2]
    return _entries() / digest / name


def _encode(entry: Mapping[str, bytes]) -> bytes:
    """Magic, then a line of JSON with names and lengths, then the strings, then the checksum of all that."""
    names = json.dumps([[name, len(value)] for name, value in entry.items()]).encode()
    body = _MAGIC + names + b"\n" + b"".join(entry.values())
    return body + hashlib.sha256(body).digest()


def _decode(data: bytes) -> dict[str, bytes] | None:
    body, digest = data[:-_DIGEST], data[-_DIGEST:]
    if not body.startswith(_MAGIC) or hashlib.sha256(body).digest() != digest:
        return None
    names, _, rest = body[len(_MAGIC) :].partition(b"\n")
    entry, start = {}, 0
    for name, length in json.loads(names):
        entry[name] = rest[start : start + length]
        start += length
    return entry


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "0"
