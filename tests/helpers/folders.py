"""Temporary folders that a server under another account can enter."""

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def open_folder(prefix: str, *, parent: str | None = None) -> Generator[Path]:
    """A temporary folder that every user may traverse: as root, servers below it run under an account of their own."""
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o711)
        yield folder
