"""The targets that the documentation names exist, and `make nightly` runs the long forms."""

import re
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
    assert {"chaos", "mutants", "property", "fuzz", "bench-peers"} <= called <= TARGETS
