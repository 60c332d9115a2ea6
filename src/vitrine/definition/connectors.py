"""Installed connectors: the package's own, and those of other distributions; and where a pipeline may write."""

import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self, cast

from pydantic import AliasChoices, BaseModel, ConfigDict, SecretStr

from vitrine import urls
from vitrine.errors import ConfigError
from vitrine.settings import Settings

PACKAGE = "vitrine.connectors"
ENTRY_POINTS = "vitrine.connectors"
GROUPS = "vitrine."
"""Every group of entry points that is read here begins with it."""

DEVSERVER_PACKAGE = "vitrine_devserver"
"""The package of the extra `devserver`; connectors name it as text, so that the product runs without it."""

DEFAULT_SINK = "postgres"
"""The sink of a target without a scheme."""


class NoOptions(BaseModel):
    """A connector without options of its own."""


@dataclass(frozen=True)
class SourceSpec:
    """How pipelines read through a connector; `factory` is `module:Class` and imported when a source is built."""

    factory: str
    options: type[BaseModel] = NoOptions
    tables: str | None = None  # `module:function` that lists what can be read; None: the connector cannot


@dataclass(frozen=True)
class SinkSpec:
    """How pipelines name and write targets of a connector; a target is `<scheme>:<name>`, or the bare name."""

    factory: str
    pattern: str  # of the name
    grammar: str  # the same in words, for error messages
    scheme: str | None = None
    options: type[BaseModel] = NoOptions
    reserved: str | None = None  # names that are refused even if they are in allowed_targets

    @property
    def example(self) -> str:
        return self.grammar.partition(" ")[0]


class DevelopmentServer(Protocol):
    """A server of the system on this machine, for development and tests; `vitrine devserver` runs it."""

    title: ClassVar[str]
    default_port: ClassVar[int]
    url_variable: ClassVar[str]  # the setting that names a server of this kind

    @classmethod
    def start(cls, folder: Path | None = None, port: int = 0, report: Callable[[str], None] = ...) -> Self:
        """A server that answers; port 0 chooses a free one, and without a folder the data is temporary."""
        ...

    @property
    def url(self) -> str: ...

    @property
    def is_running(self) -> bool: ...

    def stop(self) -> None: ...


@dataclass(frozen=True)
class Connector:
    """One system that can be read or written."""

    name: str
    settings: type[BaseModel] = NoOptions
    extra: str | None = None  # that installs its client library
    source: SourceSpec | None = None
    sink: SinkSpec | None = None
    devserver: str | None = None  # `module:Class` of a DevelopmentServer
    diagnose: str | None = None  # `module:function` that checks its settings and systems, for `vitrine doctor`


class Diagnosis(NamedTuple):
    """One line of `vitrine doctor`."""

    subject: str
    level: Literal["ok", "warning", "error"]
    text: str
    remedy: str | None = None


class Target(NamedTuple):
    """A parsed target_table."""

    connector: Connector
    scheme: str | None
    name: str

    def __str__(self) -> str:
        return f"{self.scheme}:{self.name}" if self.scheme else self.name


def entry_points(*, group: str) -> Iterable[metadata.EntryPoint]:
    """The entry points of one of our groups. The folders of sys.path are searched once: that takes a while."""
    return [one for one in _entry_points(tuple(sys.path)) if one.group == group]


@lru_cache(maxsize=1)
def _entry_points(path: tuple[str, ...]) -> list[metadata.EntryPoint]:
    """Of each distribution that mentions us; to parse those of all others takes as long as to find them."""
    texts = ((one, one.read_text("entry_points.txt")) for one in metadata.distributions(path=list(path)))
    names = dict.fromkeys(one.name for one, text in texts if text and GROUPS in text)
    # of two distributions with one name, Python imports the first
    return [point for name in names for point in metadata.distribution(name).entry_points]


@cache
def installed() -> Mapping[str, Connector]:
    """Every connector by name; ConfigError where two claim the same name or scheme."""
    found: dict[str, Connector] = {}
    package = importlib.import_module(PACKAGE)
    for module in pkgutil.iter_modules(package.__path__, f"{PACKAGE}."):
        connector = getattr(importlib.import_module(module.name), "connector", None)
        if isinstance(connector, Connector):
            _add(found, connector)
    for point in entry_points(group=ENTRY_POINTS):
        try:
            loaded = point.load()
        except (ImportError, AttributeError) as exc:
            raise ConfigError(
                f"cannot import connector '{point.name}' ({point.value}): {exc}", code="SETTINGS"
            ) from exc
        if not isinstance(loaded, Connector):
            raise ConfigError(f"entry point '{point.name}' ({point.value}) is not a Connector", code="SETTINGS")
        _add(found, loaded)
    return found


def _add(found: dict[str, Connector], connector: Connector) -> None:
    if connector.name in found:
        raise ConfigError(f"two connectors are named '{connector.name}'", code="DUPLICATE_NAME")
    schemes = {other.sink.scheme: other.name for other in found.values() if other.sink}
    if connector.sink and connector.sink.scheme in schemes:
        raise ConfigError(
            f"connectors '{connector.name}' and '{schemes[connector.sink.scheme]}' both claim targets"
            f" '{connector.sink.scheme}:'",
            code="DUPLICATE_NAME",
        )
    found[connector.name] = connector


def source(name: str) -> Connector:
    """The connector that reads sources of this type; ConfigError lists the installed ones."""
    connector = installed().get(name)
    if connector is None or connector.source is None:
        known = ", ".join(sorted(one.name for one in installed().values() if one.source))
        raise ConfigError(f"unknown source_type '{name}'; installed: {known}", code="UNKNOWN_SOURCE_TYPE")
    return connector


def sink_of(target: str) -> Connector | None:
    """The connector whose scheme the target has; None where none claims it."""
    scheme = target.partition(":")[0] if ":" in target else None
    return next((one for one in installed().values() if one.sink and one.sink.scheme == scheme), None)


def parse_target(target: str) -> Target | None:
    """The target, or None where no connector accepts its name."""
    connector = sink_of(target)
    if connector is None or connector.sink is None:
        return None
    name = target.partition(":")[2] if connector.sink.scheme else target
    return Target(connector, connector.sink.scheme, name) if re.fullmatch(connector.sink.pattern, name) else None


def with_devserver() -> list[str]:
    """The names of the connectors that have a development server."""
    return sorted(one.name for one in installed().values() if one.devserver)


def devserver(name: str) -> type[DevelopmentServer]:
    """The development server of a connector; ConfigError lists the connectors that have one."""
    connector = installed().get(name)
    if connector is None or connector.devserver is None:
        known = ", ".join(with_devserver()) or "none"
        raise ConfigError(f"there is no development server '{name}'; available: {known}", code="UNKNOWN_DEVSERVER")
    try:
        return load_class(connector, connector.devserver)
    except ModuleNotFoundError as exc:
        if exc.name != DEVSERVER_PACKAGE:
            raise
        raise ConfigError(
            f"the development server '{name}' needs the extra `devserver`: pip install 'vitrine-etl[devserver]'",
            code="EXTRA_MISSING",
        ) from exc


def options_model(common: type[BaseModel], source_type: str, target: str) -> type[BaseModel]:
    """The options of a pipeline: the common ones, and those of its two connectors."""
    reading, writing = installed().get(source_type), sink_of(target)
    models = (
        reading.source.options if reading and reading.source else None,
        writing.sink.options if writing and writing.sink else None,
    )
    return _composed(common, *models, strict=None not in models)


def file_options(source_type: str, target: str) -> list[str]:
    """Options that a pipeline's YAML file may give as the name of another file: `json_schema_extra={"file": True}`."""
    reading, writing = installed().get(source_type), sink_of(target)
    specs = (reading.source if reading else None, writing.sink if writing else None)
    fields = [pair for spec in specs if spec is not None for pair in spec.options.model_fields.items()]
    return [name for name, field in fields if field.json_schema_extra == {"file": True}]


@cache
def every_option(common: type[BaseModel]) -> type[BaseModel]:
    """The common options and those of every installed connector, for a change that does not name its connectors."""
    specs = [spec for one in installed().values() for spec in (one.source, one.sink) if spec is not None]
    bases = tuple(dict.fromkeys((*(spec.options for spec in specs if spec.options is not NoOptions), common)))
    config = ConfigDict(extra="forbid", frozen=True)
    return cast(Any, type("EveryOption", bases, {"model_config": config, "__module__": __name__}))


@cache
def _composed(
    common: type[BaseModel], reading: type[BaseModel] | None, writing: type[BaseModel] | None, *, strict: bool
) -> type[BaseModel]:
    models = [model for model in (reading, writing) if model is not None and model is not NoOptions]
    names = list(common.model_fields)
    for model in models:
        if taken := [name for name in model.model_fields if name in names]:
            raise ConfigError(f"option '{taken[0]}' is claimed by two connectors", code="DUPLICATE_NAME")
        names += model.model_fields
    # an unknown connector is reported once, not once per option
    config = ConfigDict(extra="forbid" if strict else "ignore", frozen=True)
    bases = tuple(dict.fromkeys((*models, common)))
    return cast(Any, type("Options", bases, {"model_config": config, "__module__": __name__}))


def variables() -> list[str]:
    """Names of the variables that the settings of connectors read."""
    found: list[str] = []
    for connector in installed().values():
        for name, field in connector.settings.model_fields.items():
            found.append(f"VITRINE_{connector.name.upper()}_{name.upper()}")
            if isinstance(field.validation_alias, AliasChoices):
                found += [str(choice) for choice in field.validation_alias.choices]
    return found


def secrets_of(sections: Iterable[BaseModel]) -> list[str]:
    """Every secret in the settings of connectors, to be redacted from the log."""
    values = [value.get_secret_value() for one in sections for _, value in one if isinstance(value, SecretStr)]
    # of a URL, the log may show the host
    return [secret for value in values for secret in (urls.secrets_of(value) if "://" in value else (value,))]


def secrets_in(settings: Settings) -> list[str]:
    """Every password and other secret of an installation, to be redacted from what is logged."""
    sections = [settings.section(one.name, one.settings) for one in installed().values()]
    return [*settings.passwords(), *secrets_of(sections)]


def preload(settings: Settings) -> None:
    """Import the connectors that are configured, so that the first runs of a process do not wait for it.

    What cannot be imported is reported by the run that needs it.
    """
    for connector in installed().values():
        with suppress(ConfigError):
            if getattr(settings.section(connector.name, connector.settings), "is_configured", True):
                for part in (connector.source, connector.sink):
                    if part is not None:
                        load_class(connector, part.factory)


def load_class(connector: Connector, factory: str) -> Any:
    """The class that a factory names; for a missing client library, ConfigError names the extra to install."""
    module, _, name = factory.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as exc:
        if connector.extra is None or (exc.name or "").startswith("vitrine"):
            raise
        raise ConfigError(
            f"connector '{connector.name}' needs the extra `{connector.extra}`:"
            f" pip install 'vitrine-etl[{connector.extra}]'",
            code="EXTRA_MISSING",
        ) from exc


def is_allowed_target(target: str, allowed: Collection[str]) -> bool:
    """Whether `target` is well formed and covered by one of the patterns in `allowed`."""
    parsed = parse_target(target)
    return parsed is not None and _is_covered(parsed, allowed)


def check_target(target: str, allowed: Collection[str]) -> Target:
    """The parsed target; ConfigError BAD_TARGET or TARGET_NOT_ALLOWED otherwise."""
    parsed = parse_target(target)
    if parsed is None:
        raise ConfigError(f"target {target!r} is not a valid name; {_grammar(target)}", code="BAD_TARGET")
    if _is_reserved(parsed):
        raise ConfigError(
            f"target {target!r} has a name that is reserved; choose another name", code="TARGET_NOT_ALLOWED"
        )
    if not _is_covered(parsed, allowed):
        raise ConfigError(
            f"target {target!r} is outside the allowed targets; choose one that matches: {', '.join(sorted(allowed))}",
            code="TARGET_NOT_ALLOWED",
        )
    return parsed


def _grammar(target: str) -> str:
    connector = sink_of(target)
    if connector is not None and connector.sink is not None:
        return f"write {connector.sink.grammar}"
    known = ", ".join(f"{one.name} ({one.sink.example})" for one in installed().values() if one.sink)
    return f"no installed connector writes '{target.partition(':')[0]}:' targets; installed: {known}"


def _is_covered(target: Target, allowed: Collection[str]) -> bool:
    return not _is_reserved(target) and any(fnmatchcase(str(target), pattern) for pattern in allowed)


def _is_reserved(target: Target) -> bool:
    sink = target.connector.sink
    # guarantee: G22
    return bool(sink is not None and sink.reserved and re.match(sink.reserved, target.name))
