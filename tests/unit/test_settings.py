"""Settings: names, aliases, sentences about wrong values, secrets, and the sections of connectors."""

import logging
from datetime import timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from pydantic import AliasChoices, BaseModel, Field, SecretStr

from vitrine.connectors.postgres import PostgresSettings
from vitrine.errors import ConfigError
from vitrine.plan.planner import allowed_targets
from vitrine.settings import (
    ConnectorSettings,
    Settings,
    child_environment,
    format_bytes,
    load,
    parse_bytes,
    parse_duration,
)

URL = "postgresql://cinema:S3CR3T@db.example:5432/cinema"


def postgres_settings(settings: Settings) -> PostgresSettings:
    return settings.section("postgres", PostgresSettings)


def test_nothing_needs_to_be_set() -> None:
    settings = load()
    assert settings.database_url is None
    assert settings.lease_ttl == timedelta(seconds=30)
    assert settings.heartbeat_interval == timedelta(seconds=5)
    assert settings.home == Path(".vitrine")
    assert (settings.api_host, settings.api_port) == ("127.0.0.1", 8000)
    assert postgres_settings(settings).allowed_source_schemas == ("content", "ugc")
    assert settings.allowed_targets is None
    assert allowed_targets(settings) == ("analytics.*",)


def test_every_name_of_the_documentation_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "VITRINE_DATABASE_URL": URL,
        "VITRINE_SOURCES__UGC": "postgresql://reader@ugc.example/ugc",
        "VITRINE_ALLOWED_SOURCE_SCHEMAS": "content, shop ,",
        "VITRINE_ALLOWED_TARGETS": "analytics.films_*",
        "VITRINE_TRANSFORM_MODULES": "ours.transforms,ours.more",
        "VITRINE_LEASE_TTL": "2m",
        "VITRINE_HEARTBEAT_INTERVAL": "1500ms",
        "VITRINE_POLL_INTERVAL": "2",
        "VITRINE_SOURCE_CONNECTIONS__UGC": "5",
        "VITRINE_HISTORY_MAX_AGE": "7d",
        "VITRINE_HISTORY_MAX_RUNS": "50",
        "VITRINE_TIMEZONE": "Asia/Almaty",
        "VITRINE_HOME": "/data/vitrine",
        "VITRINE_API_HOST": "::1",
        "VITRINE_API_PORT": "8080",
        "VITRINE_LOG_LEVEL": "debug",
    }.items():
        monkeypatch.setenv(name, value)
    settings = load()
    assert settings.store_url == URL
    assert settings.source_url("ugc") == "postgresql://reader@ugc.example/ugc"
    assert postgres_settings(settings).allowed_source_schemas == ("content", "shop")
    assert settings.allowed_targets == allowed_targets(settings) == ("analytics.films_*",)
    assert settings.transform_modules == ("ours.transforms", "ours.more")
    assert settings.lease_ttl == timedelta(minutes=2)
    assert settings.heartbeat_interval == timedelta(milliseconds=1500)
    assert settings.poll_interval == timedelta(seconds=2)
    assert settings.runs_per_source() == {"ugc": 2}
    assert (settings.history_max_age, settings.history_max_runs) == (timedelta(days=7), 50)
    assert settings.zone == ZoneInfo("Asia/Almaty")
    assert settings.home == Path("/data/vitrine")
    assert (settings.api_host, settings.api_port) == ("::1", 8080)
    assert settings.log_level == "debug"


def test_the_common_name_of_the_database_is_read_as_well_but_ours_takes_precedence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://theirs/db")
    assert load().store_url == "postgresql://theirs/db"
    monkeypatch.setenv("VITRINE_DATABASE_URL", "postgres://ours/db")
    assert load().store_url == "postgres://ours/db"


def test_an_empty_value_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRINE_DATABASE_URL", "")
    monkeypatch.setenv("VITRINE_LEASE_TTL", "")
    assert load().database_url is None
    assert load().lease_ttl == timedelta(seconds=30)


def test_a_file_named_env_is_read_and_the_environment_takes_precedence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / ".env"
    file.write_text("VITRINE_API_PORT=9001\nVITRINE_POLL_INTERVAL=3s\nOTHER_PROGRAM=1\n")
    monkeypatch.setitem(Settings.model_config, "env_file", file)
    monkeypatch.setenv("VITRINE_POLL_INTERVAL", "4s")
    assert (load().api_port, load().poll_interval) == (9001, timedelta(seconds=4))


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("VITRINE_DATABASE_URL", "mysql://cinema:S3CR3T@db/cinema"),
        ("VITRINE_SOURCES__UGC", "S3CR3T"),
        ("VITRINE_SOURCES", "S3CR3T is not JSON"),
        ("VITRINE_SOURCES", '["S3CR3T"]'),
        ("VITRINE_LEASE_TTL", "S3CR3T"),
        ("VITRINE_HEARTBEAT_INTERVAL", "5 S3CR3T"),
        ("VITRINE_POLL_INTERVAL", "-1sS3CR3T"),
        ("VITRINE_TIMEZONE", "Europe/S3CR3T"),
        ("VITRINE_TIMEZONE", "../S3CR3T"),
        ("VITRINE_TIMEZONE", "America"),
        ("VITRINE_SOURCE_CONNECTIONS", "S3CR3T"),
        ("VITRINE_SOURCE_CONNECTIONS__UGC", "S3CR3T"),
        ("VITRINE_SOURCE_CONNECTIONS__UGC", "1"),
        ("VITRINE_HISTORY_MAX_AGE", "S3CR3T"),
        ("VITRINE_HISTORY_MAX_RUNS", "0"),
        ("VITRINE_API_PORT", "S3CR3T"),
        ("VITRINE_API_PORT", "70000"),
        ("VITRINE_LOG_LEVEL", "S3CR3T"),
        ("VITRINE_TOKEN", "vtr_S3CR3T\nX-Header: 1"),
        ("VITRINE_TOKEN", "vtr_S3CR3T\u0430"),
        ("VITRINE_TOKEN", "vtr_S3CR3T and more"),
        ("VITRINE_API_URL", "https://S3CR3T..example.com"),
        ("VITRINE_WEBHOOK_URL", "https://hooks..example.com/S3CR3T"),
    ],
)
def test_a_wrong_value_is_reported_by_its_variable_and_never_repeated(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError) as refused:
        load()
    assert refused.value.code == "SETTINGS"
    assert str(refused.value).startswith(variable)
    assert "S3CR3T" not in str(refused.value)
    assert refused.value.__cause__ is None  # a traceback would print the value
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("VITRINE_API_PORT", "many", "give a whole number from 1 to 65535"),
        ("VITRINE_SOURCE_CONNECTIONS__UGC", "1", "give a whole number from 2 to 10000"),
        ("VITRINE_LOG_LEVEL", "loud", "give one of debug, info, warning, error"),
        ("VITRINE_LOG_FORMAT", "xml", "give one of auto, json, text"),
        ("VITRINE_TESTING", "perhaps", "give true or false"),
        ("VITRINE_LEASE_TTL", "long", "give a duration such as 30s, 5m or 1h"),
    ],
)
def test_a_wrong_value_has_its_remedy(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, reason: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError) as refused:
        load()
    assert str(refused.value) == f"{variable} is not valid: {reason}"


def test_all_wrong_values_are_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRINE_API_PORT", "many")
    monkeypatch.setenv("VITRINE_LEASE_TTL", "long")
    with pytest.raises(ConfigError) as refused:
        load()
    assert "VITRINE_API_PORT" in str(refused.value)
    assert "VITRINE_LEASE_TTL" in str(refused.value)


@pytest.mark.parametrize(("heartbeat", "ttl"), [("5s", "5s"), ("30s", "2s"), ("5s", "0s")])
def test_heartbeats_must_be_shorter_than_the_lease(monkeypatch: pytest.MonkeyPatch, heartbeat: str, ttl: str) -> None:
    monkeypatch.setenv("VITRINE_HEARTBEAT_INTERVAL", heartbeat)
    monkeypatch.setenv("VITRINE_LEASE_TTL", ttl)
    with pytest.raises(ConfigError, match=r"VITRINE_HEARTBEAT_INTERVAL must be shorter than VITRINE_LEASE_TTL"):
        load()


def test_secrets_are_masked_in_every_text_form(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("VITRINE_DATABASE_URL", URL)
    monkeypatch.setenv("VITRINE_SOURCES__UGC", "postgresql://reader:S3CR3T@ugc.example/ugc")
    settings = load()
    logging.getLogger("tests").warning("%s %r", settings, settings)
    shown = (repr(settings), str(settings), settings.model_dump_json(), str(settings.model_dump()), caplog.text)
    assert all("S3CR3T" not in text and "****" in text for text in shown)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load().api_port = 1  # pyright: ignore[reportAttributeAccessIssue]


def test_without_a_database_the_remedy_is_given() -> None:
    with pytest.raises(ConfigError, match=r"set VITRINE_DATABASE_URL=postgresql://") as refused:
        _ = load().store_url
    assert refused.value.code == "NO_DATABASE"


def test_the_default_source_is_the_store_unless_it_has_an_account_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VITRINE_DATABASE_URL", URL)
    assert load().source_url("default") == URL
    monkeypatch.setenv("VITRINE_SOURCES__DEFAULT", "postgresql://reader@db.example/cinema")
    assert load().source_url("default") == "postgresql://reader@db.example/cinema"
    assert load().store_url == URL


def test_an_unknown_source_is_named_with_those_that_are_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRINE_DATABASE_URL", URL)
    monkeypatch.setenv("VITRINE_SOURCES__UGC", "postgresql://reader:S3CR3T@ugc.example/ugc")
    with pytest.raises(ConfigError) as refused:
        load().source_url("shop")
    assert refused.value.code == "UNKNOWN_SOURCE"
    assert "unknown source 'shop'; configured: default, ugc" in str(refused.value)
    assert "VITRINE_SOURCES__SHOP" in str(refused.value)
    assert "S3CR3T" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("5m", 300), ("1h", 3600), ("2d", 172_800), ("250ms", 0.25), ("1.5s", 1.5), ("7", 7), (" 7 s ", 7)],
)
def test_a_duration_is_parsed(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)
    assert parse_duration(timedelta(seconds=seconds)) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "s", "-1s", "5 minutes", "1h30m", "1e3", "∞"])
def test_a_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="give a duration such as 30s"):
        parse_duration(text)


def test_a_child_process_gets_our_environment_with_this_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRINE_API_PORT", "8080")
    environment = child_environment(Settings.model_validate({"database_url": "postgresql://cinema@db.example/cinema"}))
    assert environment["VITRINE_DATABASE_URL"] == "postgresql://cinema@db.example/cinema"
    assert environment["VITRINE_API_PORT"] == "8080"


@pytest.mark.parametrize("variable", ["VITRINE_POLL_INTERVAL", "VITRINE_HEARTBEAT_INTERVAL"])
def test_an_interval_without_a_wait_is_refused(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "0s")
    with pytest.raises(ConfigError, match=f"{variable} is not valid: give at least 10ms"):
        load()


# -- sections of connectors -------------------------------------------------------------------------------------------


class SearchSettings(ConnectorSettings):
    url: SecretStr | None = Field(default=None, validation_alias=AliasChoices("ELASTICSEARCH_URL", "url"))
    bulk_bytes: int = Field(default=1024, ge=1)
    timeout_seconds: int = 30


class PlainSettings(BaseModel):
    level: int = 1


def test_a_connector_reads_variables_with_its_own_prefix_or_an_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRINE_SEARCH_BULK_BYTES", "2048")
    monkeypatch.setenv("ELASTICSEARCH_URL", "http://search.example:9200")
    monkeypatch.setenv("VITRINE_TIMEOUT_SECONDS", "5")  # not of this connector
    section = load().section("search", SearchSettings)
    assert section.url is not None
    assert section.url.get_secret_value() == "http://search.example:9200"
    assert (section.bulk_bytes, section.timeout_seconds) == (2048, 30)


@pytest.mark.parametrize("variable", ["VITRINE_ALLOWED_SOURCE_SCHEMAS", "VITRINE_POSTGRES_ALLOWED_SOURCE_SCHEMAS"])
def test_both_names_of_the_allowed_schemas_are_read(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "shop, billing")
    assert postgres_settings(load()).allowed_source_schemas == ("shop", "billing")


def test_values_given_in_code_take_precedence_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRINE_SEARCH_BULK_BYTES", "2048")
    monkeypatch.setenv("VITRINE_PLAIN_LEVEL", "9")
    settings = load(connectors={"search": {"bulk_bytes": 7}, "plain": {"level": 3}})
    assert settings.section("search", SearchSettings).bulk_bytes == 7
    assert settings.section("plain", PlainSettings).level == 3
    assert load().section("plain", PlainSettings).level == 1  # a model that is not ConnectorSettings reads nothing


def test_a_wrong_value_of_a_connector_is_reported_by_its_variable_and_never_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VITRINE_SEARCH_BULK_BYTES", "S3CR3T")
    with pytest.raises(ConfigError) as refused:
        load().section("search", SearchSettings)
    assert refused.value.code == "SETTINGS"
    assert str(refused.value) == "VITRINE_SEARCH_BULK_BYTES is not valid: give a whole number of at least 1"
    assert refused.value.__cause__ is None


def test_a_file_named_env_is_read_for_connectors_as_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("VITRINE_SEARCH_BULK_BYTES=99\nVITRINE_ALLOWED_SOURCE_SCHEMAS=shop\n")
    monkeypatch.setitem(Settings.model_config, "env_file", file)
    assert load().section("search", SearchSettings).bulk_bytes == 99
    assert postgres_settings(load()).allowed_source_schemas == ("shop",)


def test_the_passwords_of_every_url_are_known_for_redaction() -> None:
    settings = load(database_url="postgresql://a:p%40ss@db/x", sources={"ugc": "postgresql://b:word@db/y"})
    assert set(settings.passwords()) == {"p%40ss", "p@ss", "word"}


@pytest.mark.parametrize("given", ["films", "content.", ".films", "a.b.c"])
def test_an_allowed_relation_needs_its_schema(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("VITRINE_ALLOWED_RELATIONS", f"content.films, {given}")
    with pytest.raises(ConfigError, match="VITRINE_ALLOWED_RELATIONS is not valid: give each relation"):
        postgres_settings(load())
    monkeypatch.setenv("VITRINE_ALLOWED_RELATIONS", "content.films, ugc.v")
    assert postgres_settings(load()).allowed_relations == ("content.films", "ugc.v")


@pytest.mark.parametrize(
    ("given", "size"), [("64MB", 64 * 1024**2), ("10 GB", 10 * 1024**3), ("2048", 2048), ("512kB", 512 * 1024)]
)
def test_a_size_is_written_as_in_postgresql(given: str, size: int) -> None:
    assert parse_bytes(given) == parse_bytes(format_bytes(size)) == size


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("VITRINE_MAX_ROW_BYTES", "64 megabytes"),
        ("VITRINE_MAX_ROW_BYTES", "10TB"),
        ("VITRINE_PLAN_TIMEOUT", "0s"),
        ("VITRINE_ALLOWED_FUNCTIONS", "similarity"),
    ],
)
def test_a_limit_that_is_not_valid_is_named(monkeypatch: pytest.MonkeyPatch, name: str, given: str) -> None:
    monkeypatch.setenv(name, given)
    with pytest.raises(ConfigError, match=f"{name} is not valid"):
        postgres_settings(load())


def test_the_settings_of_a_connector_are_read_once_and_a_copy_with_other_values_reads_them_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VITRINE_SEARCH_BULK_BYTES", "2048")
    settings = load()
    section = settings.section("search", SearchSettings)
    assert settings.section("search", SearchSettings) is section
    copied = settings.model_copy(update={"connectors": {"search": {"bulk_bytes": 7}}})
    assert copied.section("search", SearchSettings).bulk_bytes == 7
    assert settings.section("search", SearchSettings).bulk_bytes == 2048
