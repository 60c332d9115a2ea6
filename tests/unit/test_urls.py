"""URLs: every part arrives as PostgreSQL users expect, and what is not clear is refused without a word of it."""

import pytest
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from vitrine.urls import KEYWORDS, UrlError, mask, parse_http, parse_postgres, secrets_of

S = "S3CR3T"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://",
        "postgres://localhost",
        "postgresql:///cinema",
        "postgresql://user@/cinema?host=/var/run/postgresql&port=5433",
        "postgresql://user@%2Fvar%2Frun%2Fpostgresql/cinema",
        f"postgresql://user:{S}@db.example:5432/cinema?sslmode=require",
        f"postgresql://user:{S}%40tail%2F%25%23%3F@db.example/cinema",
        f"postgresql://user:{S}#hash@db.example/cinema",
        f"postgresql://u%40corp:{S}@db.example/cinema",
        f"postgresql://user:{S}@[::1]:5432/cinema",
        f"postgresql://user:{S}@one:5432,two:5433,[fe80::1]/cinema?target_session_attrs=read-write",
        f"postgresql://user:{S}@one,two/cinema",
        f"postgresql://db.example/cinema?user=user&password={S}%26",
        "postgresql://user@db.example/cinema?passfile=/secrets/pgpass",
        "postgresql://user@db.example/cinema?options=-c%20role%3Dx",
        "postgresql://user:@db.example/cinema",
        "postgresql://db.example/%D0%BA%D0%B8%D0%BD%D0%BE",
    ],
)
def test_a_url_is_taken_apart_as_libpq_does(url: str) -> None:
    assert parse_postgres(url).keywords() == conninfo_to_dict(url)


@pytest.mark.promise("K9")
@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{S}@tail@host/db",
        f"postgresql://u:tail@{S}@host/db",
        f"postgresql://u:{S}/tail@host/db",
        f"postgresql://u:12/{S}@host/db",
        f"postgresql://u:{S}?tail@host/db",
        f"postgresql://u:12?{S}@host/db",
        f"postgresql://u:12?password={S}@host/db&{S}=1",
        f"postgresql://u:{S}%zz@host/db",
        f"postgresql://u:{S}%@host/db",
        f"postgresql://u:{S}%00@host/db",
        f"postgresql://u:{S}%ff@host/db",
        f"postgresql://u:{S}@[::1/db",
        f"postgresql://u:{S}@[{S}]/db",
        f"postgresql://u:p@host:{S}/db",
        "postgresql://u:p@host:70000/db",
        f"postgresql://u:{S} tail@host/db",
        f"postgresql://u:{S}\ntail@host/db",
        f"postgresql://u:p@host/db?{S}=1",
        f"postgresql://u:p@host/db?sslmode={S}&{S}",
        f"postgresql://u:p@ho%40{S}st/db",
        f"postgresql://u:p@host/db/{S}",
        f"postgresql://u:p@host/{S}@db",
        f"mysql://u:{S}@host/db",
        f"host=db password={S}",
        S,
        "",
    ],
)
def test_a_url_that_is_not_clear_is_refused_without_a_part_of_it(url: str) -> None:
    with pytest.raises(UrlError) as refused:
        parse_postgres(url)
    assert S not in str(refused.value)
    assert "tail" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_every_keyword_of_libpq_is_known() -> None:
    assert {one.keyword.decode() for one in pq.Conninfo.get_defaults()} <= KEYWORDS


@pytest.mark.promise("K9")
def test_the_text_form_of_a_url_hides_its_secrets() -> None:
    url = parse_postgres(f"postgresql://u:{S}@host/db?sslpassword={S}")
    assert S not in repr(url)
    assert S not in str(url)


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        (f"postgresql://u:{S}%40x@host/db", {f"{S}@x", f"{S}%40x"}),
        (f"postgresql://u@host/db?password={S}&sslpassword=other", {S, "other"}),
        ("postgresql://u@host/db", set[str]()),
        (f"https://elastic:{S}%2F@search:9200,https://b:second@other", {f"{S}%2F", f"{S}/", "second"}),
        (f"postgresql://u:{S}@x@host", {f"postgresql://u:{S}@x@host"}),
    ],
)
def test_every_secret_of_a_url_is_found(url: str, secrets: set[str]) -> None:
    assert set(secrets_of(url)) == secrets


@pytest.mark.parametrize(
    "url", ["http://localhost:9200", f"https://elastic:{S}@search:9200/path", "http://a:9200, http://[::1]:9200"]
)
def test_an_address_of_a_cluster_is_accepted(url: str) -> None:
    assert parse_http(url)


@pytest.mark.promise("K9")
@pytest.mark.parametrize(
    "url",
    [
        f"https://elastic:{S}@tail@search:9200",
        f"https://elastic:{S}/tail@search:9200",
        f"https://elastic:{S}#tail@search:9200",
        f"https://elastic:{S},tail@search:9200",
        f"https://elastic:{S}%@search:9200",
        f"search:{S}@host",
        f"https://search:{S}",
        "",
    ],
)
def test_an_address_of_a_cluster_that_is_not_clear_is_refused_without_a_part_of_it(url: str) -> None:
    with pytest.raises(UrlError) as refused:
        parse_http(url)
    assert S not in str(refused.value)
    assert "tail" not in str(refused.value)


@pytest.mark.promise("K9")
@pytest.mark.parametrize(
    "text",
    [
        f"cannot connect to postgresql://u:{S}@tail@host/db",
        f'could not translate host name "{S}@host" to address: Name or service not known',
        f'could not translate host name "{S}%host" to address',
    ],
)
def test_the_text_of_a_driver_is_masked(text: str) -> None:
    assert S not in mask(text)


def test_an_ordinary_host_in_the_text_of_a_driver_stays() -> None:
    text = 'connection to server at "db.example", port 5432 failed: Connection refused'
    assert mask(text) == text
