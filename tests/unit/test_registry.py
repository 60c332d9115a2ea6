"""Names that configuration may use, and where they come from."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from vitrine.core.rows import Row
from vitrine.definition import registry
from vitrine.definition.registry import Kind, Readers, Task, Transforms, describe_options
from vitrine.errors import ConfigError


def unchanged(rows: Sequence[Row]) -> Sequence[Row]:
    """Gives back what it got.

    And nothing else.
    """
    return rows


class Limits(BaseModel):
    low: int
    high: int | None = None
    word: str = "none"
    names: dict[str, str] = Field(default_factory=dict[str, str])


def test_two_functions_of_one_name_are_refused() -> None:
    transforms = Transforms("transform")
    transforms.register("twice")(unchanged)
    transforms.register("twice")(unchanged)  # the same one again is harmless
    with pytest.raises(ConfigError, match="two transforms are named 'twice'"):
        transforms.register("twice")(list)


@pytest.mark.parametrize("name", ["os.system", "../x", "a.b:c", "__class__", "Upper", "", "x" * 64])
def test_a_name_that_could_be_anything_else_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid name for a transform"):
        Transforms("transform").register(name)(unchanged)


def test_a_task_tells_about_itself() -> None:
    task = Task("under_test", Kind.ROW, unchanged, Limits)
    assert task.summary == "Gives back what it got."
    assert task.origin == __name__
    assert describe_options(task) == [
        "low: int",
        "high: int | None = None",
        "word: str = none",
        "names: dict[str, str] = {}",
    ]
    assert describe_options(Task("under_test", Kind.ROW, unchanged, None)) == []


def test_the_packages_own_are_installed() -> None:
    assert {"audience_segment", "rating_trend"} <= set(registry.transforms.names())
    assert "calendar_days" in registry.readers.names()
    assert registry.transforms.get("audience_segment").origin == "vitrine"
    assert registry.transforms.get("rating_trend").kind is Kind.FRAME


def test_a_reader_declares_its_columns() -> None:
    readers = Readers("reader")

    @readers.register("numbers", columns={"n": "integer"})
    def numbers(after: Any) -> Iterator[Row]:
        yield {"n": 1}

    assert vars(readers)["_tasks"]["numbers"].columns == (("n", "integer"),)
    assert numbers is vars(readers)["_tasks"]["numbers"].function


@pytest.fixture
def _loading_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """What this test installs is found, and forgotten afterwards."""
    registry.load()
    monkeypatch.setattr(registry, "_loaded", False)
    for known in (registry.transforms, registry.readers):
        monkeypatch.setitem(vars(known), "_tasks", dict(vars(known)["_tasks"]))
    monkeypatch.syspath_prepend(str(tmp_path))  # pyright: ignore[reportUnknownMemberType]
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        del sys.modules[name]


MODULE = """
from vitrine.definition.registry import readers, transforms

@transforms.register("acme_upper")
def upper(rows):
    "Upper case."
    return rows

@readers.register("acme_numbers", columns={"n": "integer"})
def numbers(after):
    return []
"""


def install(folder: Path, name: str, module: str, value: str) -> None:
    """A distribution, as pip leaves it."""
    (folder / f"{module}.py").write_text(MODULE)
    info = folder / f"{name.replace('-', '_')}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[vitrine.transforms]\nacme = {value}\n")
    (info / "RECORD").write_text(f"{module}.py,,\n")
    (info / "top_level.txt").write_text(f"{module}\n")


@pytest.mark.usefixtures("_loading_anew")
def test_an_installed_distribution_brings_its_own_by_entry_point(tmp_path: Path) -> None:
    install(tmp_path, "acme-transforms", "acme_transforms", "acme_transforms")
    assert registry.transforms.get("acme_upper").summary == "Upper case."
    assert registry.transforms.get("acme_upper").origin == "acme-transforms"
    assert "acme_numbers" in registry.readers.names()


@pytest.mark.usefixtures("_loading_anew")
def test_an_entry_point_that_cannot_be_imported_is_told(tmp_path: Path) -> None:
    install(tmp_path, "acme-broken", "acme_broken", "acme_missing")
    with pytest.raises(ConfigError, match=r"cannot import entry point 'acme' \(acme_missing\)"):
        registry.transforms.names()


@pytest.mark.usefixtures("_loading_anew")
def test_a_module_of_the_settings_brings_its_own(tmp_path: Path) -> None:
    (tmp_path / "our_tasks.py").write_text(MODULE)
    registry.load(["our_tasks"])
    assert registry.transforms.get("acme_upper").origin == "our_tasks"
    with pytest.raises(ConfigError, match="cannot import 'no_such_module' named by VITRINE_TRANSFORM_MODULES"):
        registry.load(["no_such_module"])


@pytest.mark.usefixtures("_loading_anew")
def test_nothing_is_imported_for_a_name(tmp_path: Path) -> None:
    (tmp_path / "our_tasks.py").write_text(MODULE)
    for name in ("our_tasks", "our_tasks:upper", "our_tasks.upper", "os.system", "__class__"):
        with pytest.raises(ConfigError, match="unknown transform"):
            registry.transforms.get(name)
    assert "our_tasks" not in sys.modules
