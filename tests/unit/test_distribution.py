"""The README and the messages name the distributions and their extras as pyproject.toml does."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
README = (ROOT / "README.md").read_text("utf-8")
PINNED = (ROOT / "requirements" / "runtime.txt").read_text("utf-8")
PACKAGES = sorted(file.parent for file in ROOT.glob("packages/*/pyproject.toml"))
SUFFIXES = {".md", ".py"}
INSTALL = re.compile(r"pip install '?(vitrine[\w-]*)(?:\[([\w,]+)\])?")


def texts() -> list[str]:
    folders = [ROOT / "docs", ROOT / "src", ROOT / "packages"]
    files = [*ROOT.glob("*.md"), *(file for folder in folders for file in folder.rglob("*") if file.suffix in SUFFIXES)]
    return [file.read_text("utf-8") for file in files]


def test_the_distribution_the_package_and_the_command_have_their_names() -> None:
    assert PROJECT["name"] == "vitrine-etl"
    assert PROJECT["scripts"] == {"vitrine": "vitrine.cli:main"}
    assert (ROOT / "src" / "vitrine" / "__init__.py").exists()


def test_the_extra_all_contains_every_other_extra_but_the_one_for_development() -> None:
    others = ",".join(sorted(EXTRAS.keys() - {"all", "devserver"}))
    assert EXTRAS["all"] == [f"vitrine-etl[{others}]"]


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda folder: folder.name)
def test_a_distribution_in_packages_has_the_name_of_its_folder_and_contains_one_typed_package(folder: Path) -> None:
    package = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
    name = folder.name.replace("-", "_")
    assert package["project"]["name"] == folder.name
    assert package["project"]["version"] == PROJECT["version"]
    assert package["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == [f"src/{name}"]
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert (folder / "src" / name / "py.typed").exists()


def test_the_repository_has_these_distributions() -> None:
    assert [folder.name for folder in PACKAGES] == ["vitrine-airflow", "vitrine-devserver", "vitrine-testing"]
    assert EXTRAS["devserver"] == ["vitrine-devserver"]


def test_the_readme_has_a_line_for_every_extra() -> None:
    install = README.partition("## Install\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", install, flags=re.MULTILINE)) == set(EXTRAS)


def test_every_text_installs_the_distribution_with_extras_that_it_has() -> None:
    found = [match for text in texts() for match in INSTALL.findall(text)]
    assert {name for name, _ in found} == {"vitrine-etl", "vitrine-airflow", "vitrine-testing"}
    assert {extra for _, extras in found for extra in extras.split(",") if extra} <= set(EXTRAS)


def test_the_pinned_requirements_are_those_of_the_distribution() -> None:
    assert set(re.findall(r"(\S+) \(pyproject\.toml\)", PINNED)) == {"vitrine-etl"}
