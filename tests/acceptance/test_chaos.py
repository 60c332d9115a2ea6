"""All faults together, for a short time; `make chaos` does the same for longer."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.processes import environment

ROOT = Path(__file__).parents[2]


@pytest.mark.promise("A20")
@pytest.mark.parametrize("seed", [1, 2])
def test_every_mart_equals_its_source_after_random_faults(seed: int) -> None:
    command = [sys.executable, "-m", "tests.chaos", "--seconds", "10", "--seed", str(seed)]
    ended = subprocess.run(
        command, cwd=ROOT, env=environment(None), capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "every mart equals its source" in ended.stdout
