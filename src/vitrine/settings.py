"""One frozen Settings: the only place that reads the environment, `.env` files and files of secrets."""

import os
import re
import stat
from collections.abc import Collection, Iterable, MutableMapping
from datetime import timedelta
from functools import cached_property
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast
from urllib.parse import SplitResult, urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    Field,
    PlainSerializer,
    PrivateAttr,
    SecretStr,
    ValidationError,
)
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from vitrine import input_errors, urls
from vitrine.errors import ConfigError
from vitrine.input_errors import InputError

DEFAULT = ".env"
"""In the working folder; read without being named, so a part of it is not trusted."""

MARKER = ".vitrine-project"
"""A file of this name marks the folder of a project, whose `.env` is trusted."""

NAMES_CODE = frozenset(
    {"vitrine_transform_modules", "vitrine_testing", "vitrine_failpoints", "vitrine_devserver_cache", "java_home"}
)
"""Settings that choose what code is executed; standing in a folder must not be enough to execute its code."""

SUFFIX = "_file"
MAX_SECRET_BYTES = 64 * 1024


def check_regular(path: Path, what: str) -> None:
    """ConfigError unless the file is a regular one: reading a pipe or a device could take for ever."""
    try:
        mode = path.stat().st_mode
    except OSError as exc:
        raise ConfigError(f"cannot read {what} '{path}': {exc.strerror}", code="NO_FILE") from None
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "no regular file"
        raise ConfigError(f"cannot read {what} '{path}': it is {kind}", code="NO_FILE")


def is_project(folder: Path) -> bool:
    """Whether the folder is a project of this user, whose marker and `.env` no other user may write to."""
    return all(_is_own(folder / name) for name in (MARKER, DEFAULT))


def _is_own(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    writable_by_others = stat.S_IWGRP | stat.S_IWOTH
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & writable_by_others


def refuse_code(variables: Iterable[str], folder: Path) -> None:
    """ConfigError if the `.env` of a folder that is no project names code to execute."""
    named = sorted(name.upper() for name in variables if name.lower() in NAMES_CODE)
    # guarantee: K13
    if named and not is_project(folder):
        raise ConfigError(
            f"{', '.join(named)} in {DEFAULT} chooses code that is executed, and this folder is no project of yours:"
            f" give the file as `vitrine --env-file {DEFAULT} …`, set it in the environment, or run `vitrine init`",
            code="ENV_NOT_TRUSTED",
        )


def read_secrets(variables: MutableMapping[str, str | None], names: Collection[str], nested: Collection[str]) -> None:
    """Replace each `NAME_FILE` of a secret by `NAME` with the content of that file.

    `nested`: beginnings of names that belong to secrets, such as those of sources.
    """
    for variable, given in list(variables.items()):
        name = variable.removesuffix(SUFFIX)
        is_secret = name in names or any(name.startswith(one) and name != one for one in nested)
        # a source may be named `…_file`: then its value is a URL
        if name == variable or not is_secret or not given or "://" in given:
            continue
        if variables.get(name):
            raise ConfigError(
                f"{name.upper()} and {variable.upper()} are both set; remove one of them", code="SETTINGS"
            )
        del variables[variable]
        variables[name] = _read_secret(variable.upper(), Path(given))


def _read_secret(variable: str, path: Path) -> str:
    check_regular(path, f"the file of {variable}")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SECRET_BYTES + 1)
        text = content.decode("utf-8").rstrip("\r\n")
    except OSError as exc:
        raise ConfigError(f"cannot read the file of {variable} '{path}': {exc.strerror}", code="NO_FILE") from None
    except UnicodeDecodeError:
        raise ConfigError(f"the file of {variable} '{path}' is not UTF-8 text", code="SETTINGS") from None
    if not text or len(content) > MAX_SECRET_BYTES or "\0" in text:
        raise ConfigError(
            f"the file of {variable} '{path}' must hold one value, of at most {MAX_SECRET_BYTES // 1024} KB",
            code="SETTINGS",
        )
    return text


_PREFIX = "VITRINE_"

CONNECTIONS_OF_A_RUN = 2
"""To its source, at most: one streams rows, another runs queries in the meantime."""

LONGEST = timedelta(days=3650)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES = {"B": 1, "kB": 1024, "MB": 1024**2, "GB": 1024**3, "TB": 1024**4}


DURATION = r"([0-9]{1,12}(?:\.[0-9]{1,9})?) ?(ms|s|m|h|d)?"


def parse_duration(value: object) -> timedelta:
    """`30s`, `5m`, `1h`, `250ms` or plain seconds."""
    if isinstance(value, timedelta):
        return value
    matched = re.fullmatch(DURATION, str(value).strip())
    if matched is None:
        raise ValueError("give a duration such as 30s, 5m or 1h")
    seconds = float(matched[1]) * _UNITS[matched[2] or "s"]
    if seconds > LONGEST.total_seconds():
        raise ValueError(f"give a duration of at most {LONGEST.days} days")
    return timedelta(seconds=seconds)


def parse_bytes(value: object) -> object:
    """`64MB`, `10GB`, `512kB` or plain bytes, as PostgreSQL spells them."""
    matched = re.fullmatch(r"([0-9]{1,15})\s*(B|kB|MB|GB|TB)?", str(value).strip())
    if matched is None:
        raise ValueError("give a size such as 64MB or 10GB")
    return int(matched[1]) * _SIZES[matched[2] or "B"]


def format_bytes(value: int) -> str:
    """The shortest spelling that `parse_bytes` reads back: 64MB, 10GB."""
    unit = next(one for one, size in reversed(_SIZES.items()) if value % size == 0)
    return f"{value // _SIZES[unit]}{unit}"


def split_list(value: object) -> object:
    """A comma-separated text as a tuple; anything else as it is."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _postgres_url(value: object) -> object:
    urls.parse_postgres(value.get_secret_value() if isinstance(value, SecretStr) else str(value))
    return value


def _is_http(parts: SplitResult) -> bool:
    """Whether a client can look it up. An empty part, as in `hooks..example.com`, would be an exception only there."""
    try:
        return parts.scheme in ("http", "https") and bool((parts.hostname or "").encode("idna"))
    except UnicodeError:
        return False


def _api_url(value: object) -> object:
    parts = urlsplit(str(value))
    if not _is_http(parts):
        raise ValueError("give the address of an API such as https://vitrine.example.com")
    if parts.username or parts.password:
        raise ValueError("give no user or password in the address; the token belongs in VITRINE_TOKEN")
    if parts.query or parts.fragment:
        raise ValueError("give an address without ? and #; the token belongs in VITRINE_TOKEN")
    return value


def is_header_value(text: str) -> bool:
    """Whether a secret can be sent in a header; a client library would quote one that cannot in its error."""
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def _header_value(value: SecretStr) -> SecretStr:
    if not is_header_value(value.get_secret_value()):
        raise ValueError("give one line of ASCII characters without spaces")
    return value


def _webhook_url(value: object) -> object:
    parts = urlsplit(value.get_secret_value() if isinstance(value, SecretStr) else str(value))
    if not _is_http(parts):
        raise ValueError("give an address such as https://hooks.example.com/services/…")
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


def _host(value: str) -> str:
    if not re.fullmatch(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]{0,252})|[0-9A-Fa-f:]+", value):
        raise ValueError("give names or addresses without port, such as vitrine.example.com or *.example.com")
    return value.lower().rstrip(".")


def _network(value: str) -> str:
    try:
        return str(ip_network(value))
    except ValueError:
        raise ValueError("give addresses or networks, such as 192.0.2.10 or 10.0.0.0/8") from None


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
Bytes = Annotated[int, BeforeValidator(parse_bytes), PlainSerializer(format_bytes, return_type=str, when_used="json")]
PollInterval = Annotated[timedelta, BeforeValidator(parse_duration), AfterValidator(_at_least_10ms)]
TimeZone = Annotated[str, AfterValidator(_time_zone)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(split_list)]
Hosts = Annotated[tuple[Annotated[str, AfterValidator(_host)], ...], NoDecode, BeforeValidator(split_list)]
Networks = Annotated[tuple[Annotated[str, AfterValidator(_network)], ...], NoDecode, BeforeValidator(split_list)]
ConnectionLimit = Annotated[int, Field(ge=CONNECTIONS_OF_A_RUN, le=10_000)]
PostgresUrl = Annotated[SecretStr, BeforeValidator(_postgres_url)]
ApiUrl = Annotated[str, BeforeValidator(_api_url)]
HeaderSecret = Annotated[SecretStr, AfterValidator(_header_value)]
WebhookUrl = Annotated[SecretStr, BeforeValidator(_webhook_url)]
WebhookEvent = Literal["failure", "recovery", "stale", "quarantine"]
WebhookEvents = Annotated[tuple[WebhookEvent, ...], NoDecode, BeforeValidator(split_list)]


_SOURCES = SettingsConfigDict(
    env_file=DEFAULT,
    env_file_encoding="utf-8",
    env_ignore_empty=True,
    frozen=True,
    extra="ignore",
    populate_by_name=True,
)


class _FromFiles(BaseSettings):
    """Reads secrets from files that `…_FILE` names, and takes no code from a `.env` that is not trusted."""

    model_config = _SOURCES

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        for source in (env_settings, dotenv_settings):
            if isinstance(source, EnvSettingsSource):
                variables = dict(source.env_vars)
                if isinstance(source, DotEnvSettingsSource) and source.env_file == DEFAULT:
                    refuse_code(variables, Path())
                read_secrets(variables, *_secret_names(settings_cls, source.env_prefix))
                source.env_vars = variables
        return init_settings, env_settings, dotenv_settings


def _secret_names(model: type[BaseSettings], prefix: str) -> tuple[set[str], set[str]]:
    """The variables of secrets, and the beginnings of those that have one secret per name."""
    single: set[str] = set()
    nested: set[str] = set()
    for name, info in model.model_fields.items():
        if "SecretStr" not in str(info.annotation):
            continue
        alias = info.validation_alias
        known = [str(one) for one in alias.choices] if isinstance(alias, AliasChoices) else [f"{prefix}{name}"]
        names = {one.lower() for one in known}
        if str(info.annotation).startswith("dict"):
            nested |= {f"{one}__" for one in names}
        else:
            single |= names
    return single, nested


class ConnectorSettings(_FromFiles):
    """Base of a connector's settings: each field is read from VITRINE_<CONNECTOR>_<FIELD>, or from its alias."""

    needs: ClassVar[str] = "give its settings"
    """What to do about a connector that is not configured."""

    @property
    def is_configured(self) -> bool:
        """Whether pipelines can use the connector; its targets are then allowed by default."""
        return True


Section = TypeVar("Section", bound=BaseModel)


class Settings(_FromFiles):
    """Everything that differs between installations. Secrets are SecretStr: they show as ******."""

    model_config = _SOURCES | SettingsConfigDict(env_prefix=_PREFIX, env_nested_delimiter="__")

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
    show_keys_in_errors: bool = True
    home: Path = Path(".vitrine")
    api_host: str = "127.0.0.1"
    api_port: int = Field(default=8000, ge=1, le=65535)
    # pages at /console of the API, if the extra `console` is installed
    console: bool = True
    # names besides those of loopback under which clients reach the API, and the port of a runner
    allowed_hosts: Hosts = ()
    # PEM files; None: the API itself speaks no TLS
    tls_cert: Path | None = None
    tls_key: Path | None = None
    # whose X-Forwarded-For and X-Forwarded-Proto are believed
    trusted_proxies: Networks = ()
    # None: commands work on the database; otherwise through the API at this address, with the token
    api_url: ApiUrl | None = None
    token: HeaderSecret | None = None
    check_timeout: Duration = timedelta(seconds=10)
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    log_format: Literal["auto", "json", "text"] = "auto"
    log_batches: int = Field(default=20, ge=0, le=1_000_000)
    metrics_host: str = "127.0.0.1"
    metrics_port: int = Field(default=0, ge=0, le=65535)  # 0: a runner serves no metrics
    # None: no message is sent. The address of Slack and similar services is itself a secret
    webhook_url: WebhookUrl | None = None
    webhook_format: Literal["json", "slack"] = "json"
    webhook_events: WebhookEvents = ("failure", "recovery", "stale", "quarantine")
    # None: messages have no signature
    webhook_secret: SecretStr | None = None
    # only for this project's tests: makes a process fail at named points
    testing: bool = False
    failpoints: str = ""

    # the settings of connectors that were read, each with the values it was read with
    _sections: dict[tuple[object, ...], tuple[object, BaseModel]] = PrivateAttr(
        default_factory=dict[tuple[object, ...], tuple[object, BaseModel]]
    )

    @cached_property
    def zone(self) -> ZoneInfo:
        """Time zone for cron schedules."""
        return ZoneInfo(self.timezone)

    @cached_property
    def store_url(self) -> str:
        """The database that holds store and marts; ConfigError if none is configured."""
        if self.database_url is None:
            raise ConfigError(
                "no database is configured: set VITRINE_DATABASE_URL=postgresql://user:password@host:5432/database, or"
                " start `vitrine up` in this folder, which has its own",
                code="NO_DATABASE",
            )
        return self.database_url.get_secret_value()

    def section(self, connector: str, model: type[Section]) -> Section:
        """The settings of a connector, read once; ConfigError names a wrong variable, never its value."""
        key = connector, model, self.model_config.get("env_file")
        given, found = self._sections.get(key, (None, None))
        if given is not self.connectors:  # model_copy shares this dictionary with settings that have other values
            found = self._read_section(connector, model)
            self._sections[key] = self.connectors, found
        return cast(Section, found)

    def _read_section(self, connector: str, model: type[Section]) -> Section:
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
        """Every secret in the database URLs, percent-encoded and decoded, and those of the webhook."""
        given = [url.get_secret_value() for url in (self.database_url, *self.sources.values()) if url is not None]
        webhook = [one.get_secret_value() for one in (self.webhook_url, self.webhook_secret) if one is not None]
        return [*(secret for url in given for secret in urls.secrets_of(url)), *webhook]

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
    _check_env_file()
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


def choose_env_file(path: Path) -> None:
    """Read this file instead of `.env` in the working folder, in the whole process; the user has named it."""
    check_regular(path, "the file of --env-file")
    Settings.model_config["env_file"] = path


def chosen_env_file() -> Path | None:
    """The file that was chosen; None: `.env` in the working folder, if there is one."""
    chosen = Settings.model_config.get("env_file")
    return chosen if isinstance(chosen, Path) else None


def _check_env_file() -> None:
    chosen = Settings.model_config.get("env_file")
    if isinstance(chosen, str | Path) and (path := Path(chosen)).exists():
        check_regular(path, "the settings in")
        try:
            path.read_text("utf-8")
        except OSError as exc:
            raise ConfigError(f"cannot read the settings in '{path}': {exc.strerror}", code="NO_FILE") from None
        except UnicodeDecodeError:
            raise ConfigError(f"the settings in '{path}' are not UTF-8 text", code="SETTINGS") from None


def _sentence(mistake: InputError, prefix: str = "VITRINE_") -> str:
    if not mistake.location:  # the settings contradict one another
        return f"{prefix}… are not valid: {mistake.reason}"
    first, *rest = map(str, mistake.location)
    variable = first if first.isupper() else f"{prefix}{first.upper()}"
    suffix = "".join(f"__{part.upper()}" for part in rest if not part.isdigit())
    return f"{variable}{suffix} is not valid: {mistake.reason}"


def child_environment(settings: Settings, **overrides: object) -> dict[str, str]:
    """The environment of a process we start: ours, with the databases of these settings, and with these overrides.

    A URL with a secret is left out: it is in a file or in our environment, where the child finds it as well.
    """
    given = {"DATABASE_URL": settings.store_url} | {
        f"SOURCES__{name.upper()}": url.get_secret_value() for name, url in settings.sources.items()
    }
    without_secret = {name: url for name, url in given.items() if not any(urls.secrets_of(url))}
    said = {name.upper(): value for name, value in overrides.items()}
    return {**os.environ, **{f"VITRINE_{name}": str(value) for name, value in (without_secret | said).items()}}


def known_variables(of_connectors: Iterable[str] = ()) -> list[str]:
    """Names of the variables that are read; of a setting with several parts, its beginning."""
    own = [f"{_PREFIX}{name.upper()}" for name in Settings.model_fields if name != "connectors"]
    return sorted({*own, *of_connectors})


def unknown_variables(of_connectors: Iterable[str] = ()) -> list[str]:
    """Variables in the environment and in `.env` that begin like a setting and are none: misspelled ones."""
    from dotenv import dotenv_values  # pydantic-settings reads `.env` with it

    env_file = Settings.model_config.get("env_file")
    written = dotenv_values(env_file) if isinstance(env_file, str) else {}
    known = known_variables(of_connectors)
    found = {name.upper() for name in (*os.environ, *written) if name.upper().startswith(_PREFIX)}
    return sorted(name for name in found if name.partition("__")[0] not in known)


def allows_colour() -> bool:
    """Whether a terminal may show colours."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
