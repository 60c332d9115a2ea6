"""Temporary folders that a server under another account can enter."""

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")
ROOM = 6 * 2**30
"""Bytes that must be free in memory; otherwise the folders of servers are on disk."""


@contextmanager
def open_folder(prefix: str, *, parent: str | None = None) -> Generator[Path]:
    """A temporary folder that every user may traverse: as root, servers below it run under an account of their own."""
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o711)
        yield folder


@contextmanager
def server_folder(prefix: str) -> Generator[Path]:
    """A folder for the data of a server, in memory where there is room: copying a database is three times as fast."""
    in_memory = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM
    with open_folder(prefix, parent=str(MEMORY) if in_memory else None) as folder:
        yield folder
