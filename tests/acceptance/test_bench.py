"""Every row of the benchmark runs: on little data its figures mean nothing, but none is BROKEN or WRONG."""

import subprocess
import sys

import pytest

from bench.__main__ import WORKLOADS
from bench.comparison.rows import rows
from tests.helpers.processes import environment
from tests.mutants.table import ROOT

SLOW = {"C1", "C2", "C3", "E1"}
"""They wait for polls of open pages, or start an Elasticsearch."""


def measured(*arguments: str) -> str:
    """What the benchmark prints; it exits with 1 if a row is BROKEN or WRONG."""
    command = [sys.executable, "-m", "bench", "--scale", "0.002", "--rounds", "1", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(None), capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("names", [sorted(WORKLOADS.keys() - SLOW), sorted(SLOW)], ids=["quick", "slow"])
def test_every_row_beside_psql_runs(names: list[str]) -> None:
    printed = measured("--only", ",".join(names))
    for name in names:
        assert f" {name} " in printed


@pytest.mark.nightly
def test_every_row_beside_another_tree_runs() -> None:
    """Here the other tree is this one; a ratio of one round has no interval, so nothing is judged slower."""
    printed = measured("--against", str(ROOT))
    for row in rows(1):
        assert f" {row.name} " in printed
