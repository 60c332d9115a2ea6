"""Connectors: found by folder and entry point, named once, loaded when they are needed."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from tests.helpers import connectors
from tests.helpers.connectors import FAKE, SEARCH
from vitrine.connectors.elasticsearch import connector as elasticsearch
from vitrine.connectors.postgres import PostgresSinkOptions
from vitrine.connectors.postgres import connector as postgres
from vitrine.connectors.python_reader import connector as python
from vitrine.definition import connectors as plugins
from vitrine.definition.connectors import Connector, SinkSpec, SourceSpec
from vitrine.definition.model import Options
from vitrine.errors import ConfigError


@dataclass(frozen=True)
class Point:
    """An entry point of another distribution."""

    load: Callable[[], Any]
    name: str = "theirs"
    value: str = "theirs.package:connector"


def find(monkeypatch: pytest.MonkeyPatch, *points: Point) -> dict[str, Connector]:
    """The connectors that are found with these entry points."""

    def entry_points(*, group: str) -> tuple[Point, ...]:
        assert group == "vitrine.connectors"
        return points

    monkeypatch.setattr(plugins, "entry_points", entry_points)
    return dict(plugins.installed.__wrapped__())


def refusal(monkeypatch: pytest.MonkeyPatch, *points: Point) -> tuple[str, str]:
    with pytest.raises(ConfigError) as refused:
        find(monkeypatch, *points)
    return refused.value.code, str(refused.value)


def test_the_connectors_of_the_package_are_found_by_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find(monkeypatch) == {"elasticsearch": elasticsearch, "postgres": postgres, "python": python}


def test_connectors_of_other_distributions_are_found_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find(monkeypatch, Point(lambda: SEARCH))["search"] is SEARCH


def distribution(folder: Path, name: str, entry_points: str) -> None:
    of = folder / f"{name}-1.0.dist-info"
    of.mkdir(parents=True)
    (of / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (of / "entry_points.txt").write_text(entry_points)


def test_entry_points_are_those_of_the_distributions_that_python_imports(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    distribution(tmp_path / "first", "theirs", "[vitrine.connectors]\ntheirs = new:connector\n")
    distribution(tmp_path / "second", "theirs", "[vitrine.connectors]\ntheirs = old:connector\n")
    distribution(tmp_path / "first", "removed", "[console_scripts]\nremoved = removed:main\n")
    distribution(tmp_path / "second", "removed", "[vitrine.connectors]\nremoved = removed:connector\n")
    distribution(tmp_path / "second", "steps", "[vitrine.transforms]\nsteps = steps\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second")])
    assert [one.value for one in plugins.entry_points(group="vitrine.connectors")] == ["new:connector"]
    assert [one.value for one in plugins.entry_points(group="vitrine.transforms")] == ["steps"]


def test_two_connectors_with_one_scheme_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(SEARCH, name="lucene")
    assert refusal(monkeypatch, Point(lambda: SEARCH), Point(lambda: other)) == (
        "DUPLICATE_NAME",
        "connectors 'lucene' and 'search' both claim targets 'idx:'",
    )


def test_two_connectors_with_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Connector("postgres", source=FAKE.source)
    assert refusal(monkeypatch, Point(lambda: other)) == ("DUPLICATE_NAME", "two connectors are named 'postgres'")


def test_a_second_sink_without_a_scheme_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SEARCH.sink is not None
    other = replace(SEARCH, sink=replace(SEARCH.sink, scheme=None))
    assert refusal(monkeypatch, Point(lambda: other))[0] == "DUPLICATE_NAME"


def test_an_entry_point_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise ImportError("no module named 'theirs'")

    assert refusal(monkeypatch, Point(broken)) == (
        "SETTINGS",
        "cannot import connector 'theirs' (theirs.package:connector): no module named 'theirs'",
    )


def test_an_entry_point_that_is_no_connector_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(monkeypatch, Point(lambda: "text")) == (
        "SETTINGS",
        "entry point 'theirs' (theirs.package:connector) is not a Connector",
    )


@pytest.mark.parametrize("name", ["mysql", "search", "", "Postgres"])
def test_an_unknown_source_type_is_reported_with_those_installed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    connectors.install(monkeypatch, SEARCH)  # which cannot be read
    with pytest.raises(ConfigError) as refused:
        plugins.source(name)
    assert refused.value.code == "UNKNOWN_SOURCE_TYPE"
    assert str(refused.value) == f"unknown source_type '{name}'; installed: postgres, python"
    assert plugins.source("postgres") is postgres


# -- classes ----------------------------------------------------------------------------------------------------------


def test_a_class_is_loaded_from_its_factory() -> None:
    assert plugins.load_class(FAKE, "tests.helpers.connectors:FakeSink") is connectors.FakeSink


def test_a_missing_client_library_is_one_sentence_with_the_extra_to_install() -> None:
    with pytest.raises(ConfigError) as refused:
        plugins.load_class(Connector("search", extra="elasticsearch"), "no_such_library.sink:Sink")
    assert refused.value.code == "EXTRA_MISSING"
    assert str(refused.value) == (
        "connector 'search' needs the extra `elasticsearch`: pip install 'vitrine-etl[elasticsearch]'"
    )


@pytest.mark.parametrize(
    ("connector", "factory"),
    [
        (Connector("search"), "no_such_library.sink:Sink"),
        (Connector("search", extra="elasticsearch"), "vitrine.no_such_module:Sink"),
    ],
)
def test_a_module_that_no_extra_brings_is_a_bug_and_not_a_sentence(connector: Connector, factory: str) -> None:
    with pytest.raises(ModuleNotFoundError):
        plugins.load_class(connector, factory)


# -- options ----------------------------------------------------------------------------------------------------------


class Refreshing(BaseModel):
    refresh: bool = False


class Conflicting(BaseModel):
    max_rejects: int = 5


def sink(options: type[BaseModel]) -> Connector:
    spec = SinkSpec("x:Y", pattern="[a-z]+", grammar="idx:name", scheme="idx", options=options)
    return Connector("search", sink=spec)


def test_options_are_composed_once_for_a_pair_of_connectors(monkeypatch: pytest.MonkeyPatch) -> None:
    connectors.install(monkeypatch, sink(Refreshing))
    model = plugins.options_model(Options, "postgres", "idx:movies")
    assert model is plugins.options_model(Options, "postgres", "idx:series")
    assert model is not plugins.options_model(Options, "postgres", "analytics.movies")
    assert issubclass(model, Refreshing)
    assert issubclass(model, Options)
    assert not issubclass(model, PostgresSinkOptions)


def test_an_option_that_every_pipeline_has_cannot_be_claimed_by_a_connector(monkeypatch: pytest.MonkeyPatch) -> None:
    connectors.install(monkeypatch, sink(Conflicting))
    with pytest.raises(ConfigError, match="option 'max_rejects' is claimed by two connectors") as refused:
        plugins.options_model(Options, "postgres", "idx:movies")
    assert refused.value.code == "DUPLICATE_NAME"


def test_source_and_sink_cannot_claim_the_same_option(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Connector("feed", source=SourceSpec("x:Y", Refreshing))

    class AlsoRefreshing(BaseModel):
        refresh: bool = True

    connectors.install(monkeypatch, source, sink(AlsoRefreshing))
    with pytest.raises(ConfigError, match="option 'refresh' is claimed by two connectors"):
        plugins.options_model(Options, "feed", "idx:movies")


@pytest.mark.parametrize(("source_type", "target"), [("mysql", "analytics.x"), ("postgres", "nowhere:x")])
def test_unknown_connectors_have_no_options_and_refuse_none(source_type: str, target: str) -> None:
    model = plugins.options_model(Options, source_type, target)
    assert model.model_validate({"whatever": 1}).model_dump(exclude_defaults=True) == {}


def test_the_options_of_every_connector_are_known_for_a_change_that_names_none() -> None:
    model = plugins.every_option(Options)
    assert {*Options.model_fields, "touch_column", "lookback"} <= set(model.model_fields)
    assert model.model_config.get("extra") == "forbid"


class SecretSettings(BaseModel):
    password: SecretStr = SecretStr("correct horse")
    token: SecretStr | None = None
    host: str = "example"


def test_secrets_of_a_connector_are_known_for_redaction() -> None:
    assert plugins.secrets_of([SecretSettings(), plugins.NoOptions()]) == ["correct horse"]


def test_a_process_that_runs_pipelines_can_import_the_configured_connectors_first() -> None:
    code = (
        "import sys; from vitrine import settings; from vitrine.definition import connectors as plugins;"
        " plugins.preload(settings.Settings(database_url='postgresql://a@b/c'));"
        " names = ('postgres.source.source', 'postgres.sink.sink', 'python_reader.source', 'elasticsearch.sink');"
        " sys.stdout.write(','.join(name for name in names if f'vitrine.connectors.{name}' in sys.modules))"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith(("VITRINE_", "ELASTICSEARCH_"))}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, env=env
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "postgres.source.source,postgres.sink.sink,python_reader.source"
