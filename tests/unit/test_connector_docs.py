"""The pages about connectors: generated from the declarations, and with code that is tested."""

import re
import textwrap
from pathlib import Path

import pytest

from vitrine.definition import connectors
from vitrine_testing.reference import reference

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "connectors.md").read_text("utf-8")
EXCERPT = re.compile(r"^<!-- (\S+) -->\n```python\n(.*?)```$", re.MULTILINE | re.DOTALL)


def test_the_reference_is_generated_from_the_installed_connectors() -> None:
    page = (ROOT / "docs" / "connectors-reference.md").read_text("utf-8")
    assert page == reference(connectors.installed().values()), "run `python -m vitrine_testing.reference` again"


@pytest.mark.parametrize(("file", "code"), EXCERPT.findall(PAGE), ids=[file for file, _ in EXCERPT.findall(PAGE)])
def test_code_of_the_page_is_an_excerpt_of_a_tested_file(file: str, code: str) -> None:
    text = (ROOT / file).read_text("utf-8")
    assert code in text or textwrap.indent(code, "    ") in text  # a method is shown without its indentation


def test_every_code_of_the_page_names_its_file() -> None:
    assert PAGE.count("```python") == len(EXCERPT.findall(PAGE)) > 0
