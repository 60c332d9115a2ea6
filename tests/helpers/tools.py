"""External programs of the tests, as `.ci/tools` lists them."""

import os
import shutil
from pathlib import Path

import pytest

LIST = Path(__file__).parents[2] / ".ci" / "tools"


def listed() -> dict[str, tuple[str, ...]]:
    """The commands of each program, of which one is enough."""
    lines = [line.split() for line in LIST.read_text("utf-8").splitlines()]
    return {line[0]: tuple(line[1].split(",")) for line in lines if line and not line[0].startswith("#")}


def find(program: str) -> str:
    """The path of a program; without it the test is skipped, or fails with CI=true."""
    commands = listed()[program]
    path = next((path for command in commands if (path := shutil.which(command))), None)
    if path is not None:
        return path
    reason = f"no {program}: none of {', '.join(commands)} is on PATH; `make tools` installs it"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
