"""Builds what the commands need: settings, connections to the store, and dispatchers."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import threading

    from vitrine.postgres import Connection
    from vitrine.runner.dispatcher import PipelineDispatcher
    from vitrine.settings import Settings


def load_settings(**overrides: Any) -> "Settings":
    from vitrine import failpoints, settings

    loaded = settings.load(**overrides)
    failpoints.install(loaded.failpoints)
    return loaded


def service_settings() -> "Settings":
    """The settings of a command that needs a database: the configured one, or the demo's while `up` is running."""
    settings = load_settings()
    if settings.database_url is not None:
        return settings
    from vitrine.embedded import EmbeddedPostgres

    url = EmbeddedPostgres(settings.home / "postgres").running_url()
    return settings if url is None else load_settings(database_url=url)


def logging_settings() -> "Settings":
    """The same, for a command that writes a log instead of text."""
    from vitrine import logs, plugins

    settings = service_settings()
    sections = [settings.section(one.name, one.settings) for one in plugins.installed().values()]
    secrets = [*settings.passwords(), *plugins.secrets_of(sections)]
    logs.configure_logging(settings.log_level, settings.log_format, secrets=secrets)
    return settings


def connect_store(settings: "Settings") -> "Connection":
    from vitrine.postgres import connect

    return connect(settings.store_url, name="vitrine:cli")


def runner_name() -> str:
    import socket

    return f"{socket.gethostname()}:{os.getpid()}"


def dispatcher(settings: "Settings", stop: "threading.Event") -> "PipelineDispatcher":
    from vitrine.runner.dispatcher import PipelineDispatcher
    from vitrine.runner.executor import PipelineExecutor

    return PipelineDispatcher(settings, PipelineExecutor(settings, stop))


def foreground_dispatcher(settings: "Settings", stop: "threading.Event") -> "PipelineDispatcher":
    """A dispatcher that logs nothing: the command itself reports how the run ended."""
    import logging

    logging.getLogger("vitrine.runner.dispatcher").setLevel(logging.CRITICAL)
    return dispatcher(settings, stop)


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
