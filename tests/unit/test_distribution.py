"""The README and the messages name the distribution and its extras as pyproject.toml does."""

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
README = (ROOT / "README.md").read_text("utf-8")
PINNED = (ROOT / "requirements" / "runtime.txt").read_text("utf-8")
SUFFIXES = {".md", ".py"}
INSTALL = re.compile(r"pip install '?(vitrine[\w-]*)(?:\[([\w,]+)\])?")


def texts() -> list[str]:
    folders = [ROOT / "docs", ROOT / "src", ROOT / "integrations"]
    files = [*ROOT.glob("*.md"), *(file for folder in folders for file in folder.rglob("*") if file.suffix in SUFFIXES)]
    return [file.read_text("utf-8") for file in files]


def test_the_distribution_the_package_and_the_command_have_their_names() -> None:
    assert PROJECT["name"] == "vitrine-etl"
    assert PROJECT["scripts"] == {"vitrine": "vitrine.cli:main"}
    assert (ROOT / "src" / "vitrine" / "__init__.py").exists()


def test_the_extra_all_contains_every_other_extra_but_the_one_for_development() -> None:
    others = ",".join(sorted(EXTRAS.keys() - {"all", "devserver"}))
    assert EXTRAS["all"] == [f"vitrine-etl[{others}]"]


def test_the_readme_has_a_line_for_every_extra() -> None:
    install = README.partition("## Install\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", install, flags=re.MULTILINE)) == set(EXTRAS)


def test_every_text_installs_the_distribution_with_extras_that_it_has() -> None:
    found = [match for text in texts() for match in INSTALL.findall(text)]
    assert {name for name, _ in found} == {"vitrine-etl", "vitrine-airflow"}
    assert {extra for _, extras in found for extra in extras.split(",") if extra} <= set(EXTRAS)


def test_the_pinned_requirements_are_those_of_the_distribution() -> None:
    assert set(re.findall(r"(\S+) \(pyproject\.toml\)", PINNED)) == {"vitrine-etl"}
