"""The tool behind `make mutants`, on two entries of its table."""

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.helpers.processes import environment
from tests.mutants.table import ROOT, Mutant, load, place, tree_markers

FAST = ["A7", "H3"]


@pytest.fixture
def mutant() -> Mutant:
    """An entry with a unit test."""
    return next(one for one in load() if one.id == "H3")


def run_mutants(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.mutants.run", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment(None), capture_output=True, text=True, timeout=300, check=False
    )


def table_with(mutant: Mutant, folder: Path) -> str:
    table = folder / "table.toml"
    fields = [f"{name} = {json.dumps(value)}\n" for name, value in asdict(mutant).items()]
    table.write_text("[[mutant]]\n" + "".join(fields), "utf-8")
    return str(table)


@pytest.mark.nightly
def test_two_mutants_are_killed() -> None:
    ended = run_mutants(*FAST)
    assert "2 of 2 mutants killed" in ended.stdout, ended.stdout + ended.stderr
    assert ended.returncode == 0


@pytest.mark.nightly
def test_a_mutant_that_removes_nothing_survives(mutant: Mutant, tmp_path: Path) -> None:
    marker = place(mutant, tree_markers())
    _, protected, _ = mutant.protected((ROOT / marker.file).read_text("utf-8"), marker)
    ended = run_mutants("--table", table_with(replace(mutant, new=f"{protected}{marker.indent}pass\n"), tmp_path))
    assert "SURVIVED  H3" in ended.stdout, ended.stdout + ended.stderr
    assert ended.returncode == 1


def test_an_entry_whose_marker_is_in_another_function_is_reported(mutant: Mutant, tmp_path: Path) -> None:
    ended = run_mutants("--table", table_with(replace(mutant, function="elsewhere"), tmp_path))
    assert f"mutant H3: its marker is in {mutant.function}" in ended.stderr
    assert ended.returncode == 1
