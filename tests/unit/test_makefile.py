"""The targets that the documentation names exist, `make test` runs the short forms, `make nightly` the long ones."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, flags=re.MULTILINE))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_target_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    named = re.findall(
        r"`make (?:[A-Z]+=\S+ )*([a-z][a-z-]*)\b[^`]*`|^ {4}make ([a-z][a-z-]*)", text, flags=re.MULTILINE
    )
    assert {target for pair in named for target in pair if target} <= TARGETS


def test_nightly_runs_every_long_form() -> None:
    recipe = MAKEFILE.partition("\nnightly:")[2].partition("\n\n")[0]
    called = set(re.findall(r"\$\(MAKE\) ([a-z-]+)", recipe))
    assert {"test-versions", "chaos", "crashes", "mutants", "property", "fuzz", "bench-peers"} <= called <= TARGETS
    assert "pytest -q $(PARALLEL) -m nightly tests" in recipe


def test_the_tests_of_a_change_are_all_there() -> None:
    recipe = MAKEFILE.partition("\ntest:")[2].partition("\n\n")[0]
    assert 'pytest -q $(PARALLEL) -m "not nightly" tests\'' in recipe
    assert "test-airflow test-versions" in recipe


def shown(*arguments: str) -> set[str]:
    done = subprocess.run(["make", "help", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(re.findall(r"^  make ([a-z-]+) ", done.stdout, flags=re.MULTILINE))


def test_help_fits_on_a_screen_and_shows_every_target_when_asked() -> None:
    phony = set(re.findall(r"^\.PHONY: ([a-z-]+)$", MAKEFILE, flags=re.MULTILINE))
    assert len(shown()) < 20
    assert {"demo", "check", "test"} <= shown() < shown("ALL=1")
    assert shown("ALL=1") == phony - {"docker"}


def test_the_first_screen_of_the_readme_runs_the_product_and_its_tests() -> None:
    for name in ("README.md", "README.ru.md"):
        first_screen = (ROOT / name).read_text("utf-8").splitlines()[:30]
        assert {"make demo", "make test"} <= {line.partition("#")[0].strip() for line in first_screen}


def test_ci_runs_the_checks_and_the_tests() -> None:
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    assert script.startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in script
    assert script.endswith("\nmake check\nmake test\n")


@pytest.mark.parametrize(
    ("first", "second", "code"), [("", "", 0), ("exit 2", "", 2), ("", "exit 3", 3), ("exit 2", "exit 3", 2)]
)
def test_two_commands_at_once_fail_if_one_of_them_fails(first: str, second: str, code: int) -> None:
    """The output of the second follows, whichever ends first."""
    commands = [f"echo one; {first}", f"echo two; echo errors >&2; {second}"]
    done = subprocess.run([ROOT / ".ci" / "beside", *commands], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "one\ntwo\nerrors\n", "")
