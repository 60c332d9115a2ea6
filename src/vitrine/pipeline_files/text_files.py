"""The text of a file that a user names: of a regular file, of limited size, in UTF-8."""

import os
import stat
from pathlib import Path

from vitrine.pipeline_files.places import FileRefused, place

MAX_BYTES = 1024 * 1024


def read_text(file: Path) -> str:
    """FileRefused names the file and, if a byte is wrong, its place; a pipe or a device is never read."""
    try:
        # opening a pipe would wait for its writer
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                kind = "a folder" if stat.S_ISDIR(mode) else "no regular file"
                raise FileRefused([f"{file.name}: this is {kind}; give a file, or rename it"])
            with os.fdopen(descriptor, "rb", closefd=False) as opened:
                content = opened.read(MAX_BYTES + 1)
        finally:
            os.close(descriptor)
    except OSError as exc:
        raise FileRefused([f"{file.name}: cannot read the file: {exc.strerror}"]) from exc
    if len(content) > MAX_BYTES:
        raise FileRefused([f"{file.name}: the file is larger than {MAX_BYTES // 1024} KB"])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        before = content[: exc.start].decode("utf-8-sig").split("\n")
        line, column = len(before), len(before[-1]) + 1
        raise FileRefused([f"{place(file.name, line, column)}: the file is not UTF-8 text; save it as UTF-8"]) from exc
