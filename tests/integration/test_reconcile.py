"""Reconcile proves that a mart equals its source, and detects differences."""

from typing import Any

import pytest

from tests.helpers.running import create, succeed
from vitrine.compare import reconcile
from vitrine.definition.model import Definition
from vitrine.definition.pipeline import Pipeline
from vitrine.definition.yaml import Document
from vitrine.demo.story import sample_documents
from vitrine.errors import ConfigError
from vitrine.postgres import Connection
from vitrine.settings import Settings


def create_films(connection: Connection, settings: Settings, **fields: Any) -> Pipeline:
    defaults: dict[str, Any] = {
        "source_query": "SELECT id, title, rating, creation_date FROM content.film_work",
        "target_table": "analytics.films",
        "key_columns": ["id"],
        "options": {"control_column": "creation_date", "touch_column": "updated_at"},
    }
    return create(connection, settings, **defaults | fields)


def test_a_fresh_mart_equals_its_source(connection: Connection, settings: Settings) -> None:
    films = create_films(connection, settings)
    succeed(connection, settings, films)
    comparison = reconcile.compare(films.definition, settings)
    assert comparison.sentence() == "source = target"
    row = connection.execute("SELECT count(*) AS n, min(creation_date)::text AS low FROM content.film_work").fetchone()
    assert {"n": comparison.source.rows, "low": comparison.source.lowest} == row


@pytest.mark.promise("C13")
@pytest.mark.parametrize(
    ("change", "reported"),
    [
        (
            "UPDATE analytics.films SET title = 'x' WHERE id = (SELECT min(id::text)::uuid FROM analytics.films)",
            "values",
        ),
        ("DELETE FROM analytics.films WHERE id = (SELECT min(id::text)::uuid FROM analytics.films)", "rows 60 ≠ 59"),
        ("UPDATE analytics.films SET creation_date = '1800-01-01'", "lowest creation_date"),
        ("UPDATE content.film_work SET rating = NULL WHERE title LIKE 'Star Wars%'", "values"),
    ],
)
def test_a_difference_is_detected(connection: Connection, settings: Settings, change: Any, reported: str) -> None:
    films = create_films(connection, settings)
    succeed(connection, settings, films)
    connection.execute(change)
    comparison = reconcile.compare(films.definition, settings)
    assert not comparison.equal
    assert reported in comparison.sentence()


@pytest.mark.promise("C13")
def test_swapped_values_are_detected(connection: Connection, settings: Settings) -> None:
    films = create_films(connection, settings)
    succeed(connection, settings, films)
    connection.execute(
        "WITH two AS (SELECT id, title, lead(title) OVER w AS after, lag(title) OVER w AS before FROM"
        " (SELECT * FROM analytics.films ORDER BY id LIMIT 2) AS f WINDOW w AS (ORDER BY id))"
        " UPDATE analytics.films f SET title = coalesce(two.after, two.before) FROM two WHERE two.id = f.id"
    )
    assert not reconcile.compare(films.definition, settings).equal


def test_other_types_in_the_target_are_compared_by_value(connection: Connection, settings: Settings) -> None:
    connection.execute(
        "CREATE TABLE analytics.films (id uuid PRIMARY KEY, title varchar(200), rating numeric(3,1),"
        " creation_date date, updated_at timestamptz)"
    )
    films = create_films(connection, settings)
    succeed(connection, settings, films)
    assert reconcile.compare(films.definition, settings).equal


def test_a_mart_that_was_never_built_is_reported(connection: Connection, settings: Settings) -> None:
    films = create_films(connection, settings)
    with pytest.raises(ConfigError, match="run the pipeline first"):
        reconcile.compare(films.definition, settings)


@pytest.mark.parametrize("document", sample_documents(), ids=lambda one: one.origin)
def test_every_mart_of_the_demo_is_proven_equal(connection: Connection, settings: Settings, document: Document) -> None:
    fields = {name: value for name, value in document.fields.items() if name != "id"}
    pipeline = create(connection, settings, **fields)
    assert isinstance(pipeline.definition, Definition)
    succeed(connection, settings, pipeline)
    comparison = reconcile.compare(pipeline.definition, settings)
    assert comparison.equal
    assert comparison.source.rows > 0


def test_rows_that_the_pipeline_ignores_are_not_reported_as_missing(connection: Connection, settings: Settings) -> None:
    connection.execute("ALTER TABLE ugc.ratings ALTER modified DROP NOT NULL")
    connection.execute("UPDATE ugc.ratings SET modified = NULL WHERE rating = 7")
    ratings = create(
        connection,
        settings,
        source_query="SELECT id, rating, modified FROM ugc.ratings",
        target_table="analytics.ratings",
        mode="incremental",
        incremental_key="modified",
        key_columns=["id"],
        options={"on_null_cursor": "ignore"},
    )
    succeed(connection, settings, ratings)
    assert reconcile.compare(ratings.definition, settings).equal
