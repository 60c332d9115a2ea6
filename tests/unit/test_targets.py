"""Targets: a strict grammar inside an allow-list."""

import pytest

from vitrine.connectors.elasticsearch import connector as search
from vitrine.connectors.postgres import connector as postgres
from vitrine.definition import connectors
from vitrine.definition.connectors import Target, check_target, is_allowed_target
from vitrine.errors import ConfigError

DEFAULT = ("analytics.*", "es:*")
LONGEST = "a" * 63


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("analytics.film_mart", Target(postgres, None, "analytics.film_mart")),
        ("analytics._x9", Target(postgres, None, "analytics._x9")),
        (f"analytics.{LONGEST}", Target(postgres, None, f"analytics.{LONGEST}")),
        ("es:movies", Target(search, "es", "movies")),
        ("es:movies-2024_v1", Target(search, "es", "movies-2024_v1")),
        ("es:" + "a" * 100, Target(search, "es", "a" * 100)),
    ],
)
def test_a_well_formed_target_is_parsed_and_formatted_again(text: str, target: Target) -> None:
    assert check_target(text, DEFAULT) == target
    assert str(target) == text
    assert is_allowed_target(text, DEFAULT)


@pytest.mark.promise("G22", "H5", "F15")
@pytest.mark.parametrize(
    "text",
    [
        'analytics."x; drop"',
        "analytics.x--",
        "analytics.x;drop",
        "ANALYTICS.X",
        "analytics.X",
        "analytics.фильм",
        "analytics.x\n",
        "analytics.x ",
        " analytics.x",
        "analytics.x\0",
        "analytics.9x",
        "analytics.x-y",
        "analytics.a.b",
        "analytics.",
        "analytics.*",
        ".x",
        "x",
        "",
        "*",
        f"analytics.{LONGEST}a",
        f"{LONGEST}a.x",
        "es:",
        "es:Movies",
        "es:_all",
        "es:../_all",
        "es:.security",
        "es:-x",
        "es:*",
        "es:a,b",
        "es:a/b",
        "es:..",
        "es:movies\n",
        "es:" + "a" * 101,
        "ES:movies",
        "file:x",
    ],
)
def test_a_malformed_target_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_target(text, ("*",))
    assert refusal.value.code == "BAD_TARGET"
    assert not is_allowed_target(text, ("*",))


@pytest.mark.promise("G22")
@pytest.mark.parametrize("text", ["content.film_work", "public.x", "analytics2.x"])
def test_a_target_outside_the_allow_list_is_refused_with_the_list(text: str) -> None:
    with pytest.raises(ConfigError, match=r"analytics\.\*, es:\*") as refusal:
        check_target(text, DEFAULT)
    assert refusal.value.code == "TARGET_NOT_ALLOWED"
    assert not is_allowed_target(text, DEFAULT)


@pytest.mark.promise("G22", "F15")
@pytest.mark.parametrize(
    "text",
    [
        *("pg_catalog.x", "pg_toast.x", "pg_temp.x", "information_schema.x", "etl.etl_pipelines"),
        *("es:movies__g3", "es:movies__g12__load", "es:a__g0"),
    ],
)
@pytest.mark.parametrize("allowed", ["*", "*.*"])
def test_a_reserved_schema_is_refused_whatever_the_allow_list_says(text: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_target(text, (allowed, text))
    assert refusal.value.code == "TARGET_NOT_ALLOWED"
    assert not is_allowed_target(text, (allowed, text))


def test_an_exact_entry_allows_that_name_only() -> None:
    allowed = ("analytics.films", "es:movies")
    assert is_allowed_target("analytics.films", allowed)
    assert is_allowed_target("es:movies", allowed)
    assert not is_allowed_target("analytics.films2", allowed)
    assert not is_allowed_target("es:movies2", allowed)


def test_an_empty_allow_list_allows_nothing() -> None:
    assert not is_allowed_target("analytics.films", ())
    assert not is_allowed_target("es:movies", ())


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("analytics.X", "write schema.table in lower-case letters, digits and underscores"),
        (
            "es:Movies",
            "write es:index in lower-case letters, digits, hyphens and underscores, beginning with a letter or digit",
        ),
        (
            "file:x",
            "no installed connector writes 'file:' targets; installed: elasticsearch (es:index),"
            " postgres (schema.table)",
        ),
    ],
)
def test_a_malformed_target_is_reported_with_the_grammar_of_its_connector(text: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_target(text, DEFAULT)
    assert str(refusal.value) == f"target {text!r} is not a valid name; {remedy}"


def test_a_scheme_belongs_to_one_connector() -> None:
    assert connectors.sink_of("es:movies") is search
    assert connectors.sink_of("analytics.films") is postgres
    assert connectors.sink_of("file:x") is None
