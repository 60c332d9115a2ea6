"""What is installed: pinned by hash, from no address of ours, under known licences."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.licenses import PAGE, PINNED, ROOT, Package, is_allowed, packages, page

FILES = [ROOT / "requirements" / f"{name}.txt" for name in (*PINNED, "airflow")]


@pytest.mark.promise("K15")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_pinned_package_has_hashes_and_no_address(path: Path) -> None:
    text = path.read_text("utf-8")
    blocks = re.split(r"\n(?=[A-Za-z0-9])", text)
    unhashed = [block.split()[0] for block in blocks if "==" not in block or "--hash=sha256:" not in block]
    assert unhashed == []
    assert "://" not in text
    assert "--index-url" not in text


@pytest.mark.promise("K15")
def test_the_makefile_installs_requirements_only_by_their_hashes() -> None:
    recipe = (ROOT / "Makefile").read_text("utf-8")
    installs = [line for line in recipe.splitlines() if "$(INSTALL)" in line and "-r " in line]
    assert installs
    assert all("$(LOCKED)" in line for line in installs)
    assert "LOCKED := --require-hashes --no-deps" in recipe
    assert "--generate-hashes" in recipe


def test_the_pins_of_the_development_server_are_those_of_its_distribution() -> None:
    package = tomllib.loads((ROOT / "packages" / "vitrine-devserver" / "pyproject.toml").read_text("utf-8"))
    lines = (ROOT / "requirements" / "devserver.in").read_text("utf-8").splitlines()
    pinned = [line for line in lines if not line.startswith("#")]
    assert [*pinned, "vitrine-etl"] == package["project"]["dependencies"]


def test_the_makefile_installs_distributions_of_this_repository_from_their_folders() -> None:
    recipe = (ROOT / "Makefile").read_text("utf-8")
    installs = [line for line in recipe.splitlines() if "$(INSTALL" in line and " -e " in line]
    assert installs
    assert all("--no-deps --no-build-isolation" in line for line in installs)


@pytest.mark.promise("K15")
def test_every_licence_is_allowed() -> None:
    assert [one for one in packages() if not is_allowed(one)] == []


@pytest.mark.promise("K15")
def test_the_list_of_licences_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == page(), "run `make licenses` and read what has changed"


@pytest.mark.parametrize("licence", ["GPL-3.0-only", "AGPL-3.0", "unknown", "MIT AND GPL-2.0", "GPL-2.0 OR AGPL-3.0"])
def test_a_forbidden_or_unknown_licence_is_found(licence: str) -> None:
    assert not is_allowed(Package("new", "1", licence, ""))


@pytest.mark.parametrize("licence", ["MIT", "GPL-2.0 OR MIT", "Apache-2.0 AND BSD-2-Clause"])
def test_an_alternative_that_is_allowed_is_enough(licence: str) -> None:
    assert is_allowed(Package("new", "1", licence, ""))
