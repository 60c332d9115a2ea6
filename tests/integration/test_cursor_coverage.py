"""`validate` names tables whose changes do not move the cursor, and large tables that it reads without an index."""

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.running import create, succeed
from vitrine.core.rows import Finding
from vitrine.definition import files
from vitrine.definition.model import Definition
from vitrine.demo import story
from vitrine.plan import planner, validation
from vitrine.postgres import Connection, raw
from vitrine.settings import Settings

FIELDS: dict[str, Any] = {
    "name": "under_test",
    "source_query": "SELECT id, title, modified FROM content.film_work",
    "target_table": "analytics.films",
    "key_columns": ["id"],
    "mode": "incremental",
    "incremental_key": "modified",
}
JOINED = """\
SELECT f.id, f.title, max(g.name) AS genre, {} AS modified
  FROM content.film_work AS f
  LEFT JOIN content.genre_film_work AS gf ON gf.film_work_id = f.id
  LEFT JOIN content.genre AS g ON g.id = gf.genre_id
 {}
 GROUP BY f.id"""
BY_CHANGES = """WHERE f.modified >= $1 OR f.id IN (SELECT x.film_work_id FROM content.genre_film_work AS x
                  JOIN content.genre AS y ON y.id = x.genre_id WHERE y.modified >= $1 OR x.created >= $1)"""
COVERED = JOINED.format("greatest(f.modified, max(gf.created), max(g.modified))", "")


def findings(settings: Settings, query: str, **fields: Any) -> list[Finding]:
    definition = Definition.model_validate(FIELDS | {"source_query": query} | fields)
    return [one for one in validation.validate(definition, settings).findings if not one.note]


def codes(settings: Settings, query: str, **fields: Any) -> list[str]:
    return [one.code for one in findings(settings, query, **fields)]


# -- tables that the cursor ignores -----------------------------------------------------------------------------------


def test_a_joined_table_that_the_cursor_ignores_is_named_with_the_query_that_includes_it(settings: Settings) -> None:
    (found,) = findings(settings, JOINED.format("f.modified", ""))
    assert (found.code, found.column) == ("CURSOR_IGNORES_TABLE", "modified")
    assert found.place is not None
    assert (found.place.line, found.place.column) == (4, 13)
    assert found.text == (
        "a change in content.genre or content.genre_film_work alone never reaches this mart, because the cursor"
        " 'modified' takes its values from content.film_work only; a query that includes it has this form:"
        ' greatest(…, max("genre"."modified"), max("genre_film_work"."created")) AS "modified" … WHERE … IN (SELECT …'
        ' WHERE … >= $1 UNION SELECT … FROM "content"."genre" … WHERE "genre"."modified" >= $1 UNION SELECT … FROM'
        ' "content"."genre_film_work" … WHERE "genre_film_work"."created" >= $1)'
    )


def test_a_table_without_a_time_needs_a_full_load(connection: Connection, settings: Settings) -> None:
    connection.execute("CREATE TABLE content.kinds (name text PRIMARY KEY, label text)")
    query = "SELECT f.id, k.label, f.modified FROM content.film_work f LEFT JOIN content.kinds k ON k.name = f.type"
    (found,) = findings(settings, query)
    assert found.text.endswith("; content.kinds has no column with the time of a change, so use mode: full")


@pytest.mark.parametrize("where", ["", BY_CHANGES])
def test_a_cursor_over_every_table_is_no_finding(settings: Settings, where: str) -> None:
    query = JOINED.format("greatest(f.modified, max(gf.created), max(g.modified))", where)
    assert [code for code in codes(settings, query) if code != "NULL_CURSOR_UNKNOWN"] == []


def test_a_renamed_genre_reaches_a_mart_only_through_the_cursor(connection: Connection, settings: Settings) -> None:
    """A condition on $1 alone is not enough, because a run reads rows above its checkpoint only."""

    def genres(query: str, target: str) -> list[str]:
        connection.execute("UPDATE content.genre SET name = 'before', modified = now()")
        fields = FIELDS | {"name": target, "target_table": f"analytics.{target}", "source_query": query}
        pipeline = create(connection, settings, **fields, options={"on_null_cursor": "ignore"})
        succeed(connection, settings, pipeline)
        connection.execute("UPDATE content.genre SET name = 'after', modified = now()")
        succeed(connection, settings, pipeline)
        return [row["genre"] for row in connection.execute(raw(f"SELECT DISTINCT genre FROM analytics.{target}"))]

    connection.execute("UPDATE content.film_work SET modified = now() - interval '1 day'")
    connection.execute(
        "DELETE FROM content.film_work f WHERE NOT EXISTS"
        " (SELECT FROM content.genre_film_work gf WHERE gf.film_work_id = f.id)"
    )
    filtered = JOINED.format("f.modified", BY_CHANGES)
    assert genres(JOINED.format("f.modified", ""), "plain") == ["before"]
    assert genres(filtered, "filtered") == ["before"]
    (ignored,) = [one for one in findings(settings, filtered) if one.code == "CURSOR_IGNORES_TABLE"]
    assert "only (a condition on $1 alone does not change that);" in ignored.text
    assert genres(COVERED, "covered") == ["after"]
    assert genres(JOINED.format("greatest(f.modified, max(gf.created), max(g.modified))", BY_CHANGES), "both") == [
        "after"
    ]


def test_deletes_are_mentioned_once_for_incremental_pipelines(settings: Settings) -> None:
    report = validation.validate(Definition.model_validate(FIELDS), settings)
    assert ([one.code for one in report.findings], report.warnings) == (["DELETES"], ())
    full = Definition.model_validate(FIELDS | {"mode": "full", "incremental_key": None})
    assert validation.validate(full, settings).findings == ()


EXPECTED = {
    "audience_segments": [],
    "calendar": [],
    "film_dim_full": [],
    "film_rating_agg_full": [],
    "film_trends": [],
    "genre_dim_full": [],
    # the favourite genre of a viewer is computed again with the next event of that viewer
    "user_features": ["NULL_CURSOR_UNKNOWN", "CURSOR_IGNORES_TABLE", "DELETES"],
}


def test_the_sample_pipelines_have_exactly_these_findings(settings: Settings) -> None:
    found = {
        definition.name: [one.code for one in validation.validate(definition, settings).findings]
        for definition in (document.definition for document in story.sample_documents())
    }
    assert found == EXPECTED


def test_the_sample_pipelines_of_a_search_index_have_exactly_these_findings(settings: Settings) -> None:
    """Of their sources; the server of the index is not asked."""
    settings = settings.model_copy(update={"connectors": {"elasticsearch": {"url": "http://127.0.0.1:1"}}})
    found: dict[str, list[str]] = {}
    for document in files.read_folder(Path(story.__file__).parent / "search_pipelines"):
        checked = planner.check(document.definition, settings)
        found[checked.definition.name] = [one.code for one in checked.source.describe().findings]
        checked.source.close()
        checked.sink.close()
    assert found == {"film_dim_search": [], "film_rating_agg_search": ["NULL_CURSOR_UNKNOWN"], "movies": []}


# -- indexes ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def _events(connection: Connection) -> None:
    connection.execute(
        """
        CREATE TABLE ugc.events (id bigint PRIMARY KEY, "Changed at" timestamptz NOT NULL, note text);
        INSERT INTO ugc.events SELECT n, now() - n * interval '1 s', 'x' FROM generate_series(1, 12000) AS n;
        ANALYZE ugc.events
        """
    )


EVENTS = 'SELECT id, note, "Changed at" AS modified FROM ugc.events'
STATEMENT = 'CREATE INDEX CONCURRENTLY ON "ugc"."events" ("Changed at")'


@pytest.mark.usefixtures("_events")
@pytest.mark.parametrize(
    "query",
    [
        EVENTS,
        EVENTS + ' WHERE "Changed at" >= $1',
        f"WITH e AS ({EVENTS}) SELECT * FROM e",
        f"SELECT * FROM ({EVENTS}) AS e WHERE note = 'x'",
    ],
)
def test_a_large_table_without_an_index_on_the_cursor_is_named_with_the_statement(
    connection: Connection, settings: Settings, query: str
) -> None:
    (found,) = [one for one in findings(settings, query) if one.code != "NULL_CURSOR_UNKNOWN"]
    assert found.code == "CURSOR_NOT_INDEXED"
    assert found.text == (
        "every run reads all of ugc.events (about 12,000 rows), because no index of it begins with 'Changed at'; this"
        f" statement would help: {STATEMENT}"
    )
    connection.execute(raw(STATEMENT))
    assert "CURSOR_NOT_INDEXED" not in codes(settings, query)


@pytest.mark.usefixtures("_events")
def test_an_index_that_begins_with_another_column_or_has_a_condition_does_not_count(
    connection: Connection, settings: Settings
) -> None:
    connection.execute("CREATE INDEX ON ugc.events (note)")
    connection.execute("CREATE INDEX ON ugc.events (\"Changed at\") WHERE note = 'y'")
    assert codes(settings, EVENTS) == ["CURSOR_NOT_INDEXED"]


@pytest.mark.usefixtures("_events")
def test_a_small_table_needs_no_index(connection: Connection, settings: Settings) -> None:
    connection.execute("DELETE FROM ugc.events WHERE id > 5000")
    connection.execute("VACUUM ANALYZE ugc.events")
    assert codes(settings, EVENTS) == []


@pytest.mark.usefixtures("_events")
def test_an_integer_cursor_is_served_by_the_primary_key(settings: Settings) -> None:
    assert codes(settings, "SELECT id, note FROM ugc.events", incremental_key="id") == []
    query = "SELECT id, note FROM ugc.events WHERE id > $1 + 1"
    assert codes(settings, query, incremental_key="id") == []


@pytest.mark.usefixtures("_events")
@pytest.mark.parametrize("type_name", ["date", "timestamp", "timestamptz(0)", "ugc.moment"])
def test_times_of_every_type_are_planned(connection: Connection, settings: Settings, type_name: str) -> None:
    connection.execute("CREATE DOMAIN ugc.moment AS timestamptz CHECK (value < '2100-01-01')")
    connection.execute(raw(f'ALTER TABLE ugc.events ALTER COLUMN "Changed at" TYPE {type_name}; ANALYZE ugc.events'))
    found = [code for code in codes(settings, EVENTS) if code != "CURSOR_TIMEZONE"]
    assert found == ["CURSOR_NOT_INDEXED"]


@pytest.mark.usefixtures("_events")
def test_a_computed_cursor_has_no_index(connection: Connection, settings: Settings) -> None:
    connection.execute(raw(STATEMENT))
    query = 'SELECT note AS id, max("Changed at") AS modified FROM ugc.events GROUP BY note'
    (found,) = [one for one in findings(settings, query)]
    assert (found.code, "'modified' is computed" in found.text) == ("CURSOR_NOT_INDEXED", True)


def test_partitions_without_an_index_are_counted(connection: Connection, settings: Settings) -> None:
    connection.execute(
        """
        CREATE TABLE ugc.parts (id bigint, modified timestamptz NOT NULL, PRIMARY KEY (id)) PARTITION BY RANGE (id);
        CREATE TABLE ugc.parts_1 PARTITION OF ugc.parts FOR VALUES FROM (0) TO (8000);
        CREATE TABLE ugc.parts_2 PARTITION OF ugc.parts FOR VALUES FROM (8000) TO (20000);
        INSERT INTO ugc.parts SELECT n, now() - n * interval '1 s' FROM generate_series(1, 15000) AS n;
        ANALYZE ugc.parts
        """
    )
    (found,) = findings(settings, "SELECT id, modified FROM ugc.parts")
    assert found.text.endswith('would help: CREATE INDEX ON "ugc"."parts" ("modified")')
    assert "(about 15,000 rows)" in found.text
    connection.execute("CREATE INDEX ON ugc.parts (modified)")
    assert codes(settings, "SELECT id, modified FROM ugc.parts") == []
