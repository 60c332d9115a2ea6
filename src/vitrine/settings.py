"""One frozen Settings: the only place that reads the environment."""

import os
import re
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast
from urllib.parse import unquote
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict, SettingsError

from vitrine import input_errors
from vitrine.errors import ConfigError
from vitrine.input_errors import InputError

_PASSWORD = re.compile(r"://[^:@/?]*:([^/?]*)@")

CONNECTIONS_OF_A_RUN = 2
"""To its source, at most: one streams rows, another runs queries in the meantime."""

LONGEST = timedelta(days=3650)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(value: object) -> timedelta:
    """`30s`, `5m`, `1h`, `250ms` or plain seconds."""
    if isinstance(value, timedelta):
        return value
    matched = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h|d)?", str(value).strip())
    if matched is None:
        raise ValueError("give a duration such as 30s, 5m or 1h")
    seconds = float(matched[1]) * _UNITS[matched[2] or "s"]
    if seconds > LONGEST.total_seconds():
        raise ValueError(f"give a duration of at most {LONGEST.days} days")
    return timedelta(seconds=seconds)


def split_list(value: object) -> object:
    """A comma-separated text as a tuple; anything else as it is."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _postgres_url(value: object) -> object:
    text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
    if not re.match(r"^postgres(ql)?://", text):
        raise ValueError("give a URL such as postgresql://user:password@host:5432/database")
    return value


def _at_least_10ms(value: timedelta) -> timedelta:
    if value < timedelta(milliseconds=10):
        raise ValueError("give at least 10ms; a shorter interval would keep the process busy all the time")
    return value


def _time_zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("give the name of a time zone such as UTC, Europe/Berlin or Asia/Almaty") from None
    return value


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
PollInterval = Annotated[timedelta, BeforeValidator(parse_duration), AfterValidator(_at_least_10ms)]
TimeZone = Annotated[str, AfterValidator(_time_zone)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(split_list)]
ConnectionLimit = Annotated[int, Field(ge=CONNECTIONS_OF_A_RUN, le=10_000)]
PostgresUrl = Annotated[SecretStr, BeforeValidator(_postgres_url)]


_SOURCES = SettingsConfigDict(
    env_file=".env",
    env_file_encoding="utf-8",
    env_ignore_empty=True,
    frozen=True,
    extra="ignore",
    populate_by_name=True,
)


class ConnectorSettings(BaseSettings):
    """Base of a connector's settings: each field is read from VITRINE_<CONNECTOR>_<FIELD>, or from its alias."""

    model_config = _SOURCES

    needs: ClassVar[str] = "give its settings"
    """What to do about a connector that is not configured."""

    @property
    def is_configured(self) -> bool:
        """Whether pipelines can use the connector; its targets are then allowed by default."""
        return True


Section = TypeVar("Section", bound=BaseModel)


class Settings(BaseSettings):
    """Everything that differs between installations. Secrets are SecretStr: they show as ******."""

    model_config = _SOURCES | SettingsConfigDict(env_prefix="VITRINE_", env_nested_delimiter="__")

    # None: no database is configured, and `demo` and `up` start the embedded one
    database_url: PostgresUrl | None = Field(
        default=None, validation_alias=AliasChoices("VITRINE_DATABASE_URL", "DATABASE_URL", "database_url")
    )
    sources: dict[str, PostgresUrl] = Field(default_factory=dict[str, SecretStr])
    source_connections: dict[str, ConnectionLimit] = Field(default_factory=dict[str, int])
    # None: analytics.*, and every target of other configured connectors
    allowed_targets: Names | None = None
    # values for the settings of connectors, by connector and field; they take precedence over the environment
    connectors: dict[str, dict[str, Any]] = Field(default_factory=dict[str, dict[str, Any]])
    transform_modules: Names = ()
    lease_ttl: Duration = timedelta(seconds=30)
    heartbeat_interval: PollInterval = timedelta(seconds=5)
    poll_interval: PollInterval = timedelta(seconds=1)
    timezone: TimeZone = "UTC"
    history_max_age: Duration = timedelta(days=30)
    history_max_runs: int = Field(default=1000, ge=1, le=1_000_000)
    home: Path = Path(".vitrine")
    api_host: str = "127.0.0.1"
    api_port: int = Field(default=8000, ge=1, le=65535)
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    log_format: Literal["auto", "json", "text"] = "auto"
    metrics_host: str = "127.0.0.1"
    metrics_port: int = Field(default=0, ge=0, le=65535)  # 0: a runner serves no metrics
    # only for this project's tests: makes a process fail at named points
    testing: bool = False
    failpoints: str = ""

    @cached_property
    def zone(self) -> ZoneInfo:
        """Time zone for cron schedules."""
        return ZoneInfo(self.timezone)

    @cached_property
    def store_url(self) -> str:
        """The database that holds store and marts; ConfigError if none is configured."""
        if self.database_url is None:
            raise ConfigError(
                "no database is configured: set VITRINE_DATABASE_URL=postgresql://user:password@host:5432/database"
                " (or use `vitrine demo`, which starts its own)",
                code="NO_DATABASE",
            )
        return self.database_url.get_secret_value()

    def section(self, connector: str, model: type[Section]) -> Section:
        """The settings of a connector; ConfigError names a wrong variable, never its value."""
        given = self.connectors.get(connector, {})
        if not issubclass(model, ConnectorSettings):
            return model(**given)
        prefix = f"VITRINE_{connector.upper()}_"
        try:
            # a type checker does not see these keyword arguments of BaseSettings in a subclass
            return cast(Any, model)(_env_prefix=prefix, _env_file=self.model_config.get("env_file"), **given)
        except ValidationError as exc:
            mistakes = input_errors.explain(exc.errors(), model)
            raise ConfigError("; ".join(_sentence(one, prefix) for one in mistakes), code="SETTINGS") from None

    def passwords(self) -> list[str]:
        """Every password in the database URLs, percent-encoded and decoded."""
        urls = [url.get_secret_value() for url in (self.database_url, *self.sources.values()) if url is not None]
        written = [found[1] for url in urls if (found := _PASSWORD.search(url))]
        return [*written, *map(unquote, written)]

    def runs_per_source(self) -> dict[str, int]:
        """How many runs may read from a source at once, over all runners; a source without an entry has no limit."""
        return {name.lower(): limit // CONNECTIONS_OF_A_RUN for name, limit in self.source_connections.items()}

    def source_url(self, name: str) -> str:
        """The connection of a named source; `default` is the store's connection unless another is configured."""
        lowered = {key.lower(): url for key, url in self.sources.items()}
        if name in lowered:
            return lowered[name].get_secret_value()
        if name == "default":
            return self.store_url
        known = ", ".join(sorted({"default", *lowered}))
        raise ConfigError(
            f"unknown source '{name}'; configured: {known}. Add it with VITRINE_SOURCES__{name.upper()}=postgresql://…",
            code="UNKNOWN_SOURCE",
        )


def load(**overrides: Any) -> Settings:
    """Read environment and `.env`; a wrong value raises ConfigError naming its variable, never its value."""
    try:
        settings = Settings(**overrides)
    except ValidationError as exc:
        mistakes = input_errors.explain(exc.errors(), Settings)
        raise ConfigError("; ".join(map(_sentence, mistakes)), code="SETTINGS") from None
    except SettingsError as exc:
        # two settings have several parts, and the text of one may contain passwords
        name, value = (
            ("VITRINE_SOURCE_CONNECTIONS", "4")
            if "source_connections" in str(exc)
            else ("VITRINE_SOURCES", "postgresql://…")
        )
        raise ConfigError(
            f"{name} is not valid: give each source a variable of its own, {name}__<NAME>={value}", code="SETTINGS"
        ) from None
    if settings.heartbeat_interval >= settings.lease_ttl:
        raise ConfigError(
            "VITRINE_HEARTBEAT_INTERVAL must be shorter than VITRINE_LEASE_TTL, or every lease would expire",
            code="SETTINGS",
        )
    if settings.failpoints and not settings.testing:
        raise ConfigError(
            "VITRINE_FAILPOINTS breaks processes on purpose and is refused outside tests; unset it", code="SETTINGS"
        )
    return settings


def _sentence(mistake: InputError, prefix: str = "VITRINE_") -> str:
    if not mistake.location:  # the settings contradict one another
        return f"{prefix}… are not valid: {mistake.reason}"
    first, *rest = map(str, mistake.location)
    variable = first if first.isupper() else f"{prefix}{first.upper()}"
    suffix = "".join(f"__{part.upper()}" for part in rest if not part.isdigit())
    return f"{variable}{suffix} is not valid: {mistake.reason}"


def child_environment(url: str, **settings: object) -> dict[str, str]:
    """The environment of a process we start: ours, with this database, and with these settings."""
    said = {f"VITRINE_{name.upper()}": str(value) for name, value in settings.items()}
    return {**os.environ, "VITRINE_DATABASE_URL": url, **said}


def allows_colour() -> bool:
    """Whether a terminal may show colours."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
