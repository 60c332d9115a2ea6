"""The layout: shared helpers of tests live in tests/helpers, and the map of the package is true."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def imports_of(text: str) -> Iterator[str]:
    """Dotted names that a module imports, wherever the import stands in it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = "tests." if node.level else ""
            yield from (f"{package}{node.module or ''}.{one.name}" for one in node.names)


def from_test_modules(text: str) -> list[str]:
    """What a module imports from a test module."""
    named = [name.split(".") for name in imports_of(text)]
    return [".".join(parts) for parts in named if parts[0] == "tests" and any(one.startswith("test_") for one in parts)]


def test_no_module_imports_from_a_test_module() -> None:
    found = {str(file.relative_to(TESTS)): from_test_modules(file.read_text("utf-8")) for file in TESTS.rglob("*.py")}
    assert {file: names for file, names in found.items() if names} == {}


def test_an_import_from_a_test_module_is_found_in_every_form() -> None:
    assert from_test_modules("def use():\n    from tests.unit.test_plan import PLAN") == ["tests.unit.test_plan.PLAN"]
    assert from_test_modules("from tests.unit import test_plan") == ["tests.unit.test_plan"]
    assert from_test_modules("from .test_plan import PLAN") == ["tests.test_plan.PLAN"]
    assert from_test_modules("from tests.helpers.waiting import wait_until\nimport test_support") == []


ROOT = TESTS.parent
SOURCE = ROOT / "src" / "vitrine"


def the_map() -> list[set[str]]:
    """The names in each line of the map in CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("\n## Map\n")[2].partition("\n## ")[0]
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    return [set(re.split(r"\s{3,}", line)[0].replace("…", "").split()) for line in lines]


def test_the_map_shows_the_layers_and_everything_that_there_is() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layers = [set(re.findall(r"\w+", layer)) - {"__main__"} for layer in contracts[0]["layers"]]
    drawn = the_map()
    assert drawn[:-1] == layers[:-1]
    assert drawn[-1] < layers[-1]  # of the files at the top it names some
    there = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert set().union(*layers) == there - {"__init__", "__main__"}


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md", "docs/glossary.md"])
def test_every_file_of_the_package_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    named = set(re.findall(r"`((?:\w+/)*\w+\.(?:py|sql))`", text))
    missing = {name for name in named if not any(SOURCE.rglob(name)) and not (ROOT / name).exists()}
    assert named
    assert missing == set()
