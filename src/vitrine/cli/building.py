"""Builds what the commands need: settings, connections to the store, and dispatchers."""

import logging
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import threading

    from fastapi import FastAPI

    from vitrine.postgres import Connection
    from vitrine.runner.run import PipelineDispatcher
    from vitrine.settings import Settings
    from vitrine.store.roles import Places

log = logging.getLogger(__name__)


@dataclass
class GlobalOptions:
    """Options of the command before its name; None: not given."""

    api: str | None = None
    token_file: Path | None = None


global_options = GlobalOptions()
"""Set once, when the command line is read."""


def load_settings(**overrides: Any) -> "Settings":
    from vitrine import failpoints, settings

    loaded = settings.load(**_from_options(), **overrides)
    failpoints.install(loaded.failpoints)
    return loaded


def _from_options() -> dict[str, Any]:
    given: dict[str, Any] = {}
    if global_options.api is not None:
        given["api_url"] = global_options.api or None
    if global_options.token_file is not None:
        given["token"] = _read_token(global_options.token_file)
    return given


def _read_token(file: Path) -> str:
    from vitrine.errors import ConfigError
    from vitrine.settings import is_header_value

    try:
        token = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not text"
        raise ConfigError(f"cannot read the token file '{file}': {reason}", code="NO_FILE") from exc
    if not is_header_value(token):
        raise ConfigError(f"'{file}' does not contain a token: give a file with the token in one line", code="TOKEN")
    return token


def uses_api() -> bool:
    """Whether the command works through an API instead of the database."""
    return load_settings().api_url is not None


def refuse_api(command: str) -> None:
    """For a command that works on the database itself; VITRINE_API_URL is for the other commands, and ignored here."""
    from vitrine.errors import ConfigError

    if global_options.api:
        raise ConfigError(
            f"`vitrine {command}` works on the database itself: run it there without --api", code="NEEDS_DATABASE"
        )


def service_settings(loaded: "Settings | None" = None) -> "Settings":
    """The settings of a command that needs a database: the configured one, or the demo's while `up` is running.

    `loaded`: what `load_settings` has returned before.
    """
    settings = loaded or load_settings()
    if settings.database_url is not None:
        return settings
    from vitrine.embedded import EmbeddedPostgres

    url = EmbeddedPostgres(settings.home / "postgres").running_url()
    return settings if url is None else load_settings(database_url=url)


def logging_settings() -> "Settings":
    """The same, for a command that writes a log instead of text."""
    from vitrine import logs
    from vitrine.definition import connectors

    settings = service_settings()
    logs.configure_logging(settings.log_level, settings.log_format, secrets=connectors.secrets_in(settings))
    return settings


def connect_store(settings: "Settings") -> "Connection":
    from vitrine.postgres import connect

    return connect(settings.store_url, name="vitrine:cli")


def places(settings: "Settings") -> "Places":
    """Where pipelines may read and write in PostgreSQL, by the settings."""
    from vitrine.definition import connectors
    from vitrine.store.roles import Places

    section = settings.section("postgres", connectors.installed()["postgres"].settings).model_dump()
    marts = [one.partition(".")[0] for one in settings.allowed_targets or ("analytics.*",) if ":" not in one]
    return Places(
        sources=section["allowed_source_schemas"],
        relations=section["allowed_relations"],
        marts=tuple(dict.fromkeys(one for one in marts if one.isidentifier())),
    )


def runner_name() -> str:
    import socket

    return f"{socket.gethostname()}:{os.getpid()}"


def dispatcher(settings: "Settings", stop: "threading.Event") -> "PipelineDispatcher":
    from vitrine.runner.run import PipelineDispatcher, PipelineExecutor

    return PipelineDispatcher(settings, PipelineExecutor(settings, stop))


def foreground_dispatcher(settings: "Settings", stop: "threading.Event") -> "PipelineDispatcher":
    """A dispatcher that writes no log: the command itself reports how the run ended."""
    from vitrine import logs
    from vitrine.runner.run import OUTCOME_LOG

    logs.configure_foreground(silent=OUTCOME_LOG)
    return dispatcher(settings, stop)


def console(settings: "Settings") -> "Callable[[FastAPI], None] | None":
    """What attaches the console to the API; None: it is switched off, or its extra is not installed."""
    if not settings.console:
        return None
    try:
        from vitrine.console.app import attach
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.partition(".")[0] == "vitrine":
            raise
        log.info(
            "there is no console: it needs the extra `console`: pip install 'vitrine-etl[console]'",
            extra={"action": "no_console"},
        )
        return None
    return attach


@contextmanager
def requires_extra(extra: str, what: str) -> Generator[None]:
    """Around imports: a library that is not installed is a ConfigError with the extra that installs it."""
    from vitrine.errors import ConfigError

    try:
        yield
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.partition(".")[0] == "vitrine":
            raise
        text = f"{what} needs the extra `{extra}`: pip install 'vitrine-etl[{extra}]'"
        raise ConfigError(text, code="EXTRA_MISSING") from exc
