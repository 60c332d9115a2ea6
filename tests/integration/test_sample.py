"""`vitrine sample` on a database of the user: what it adds, refuses and shows."""

from io import StringIO

import pytest
from rich.console import Console

from vitrine.definition.pipeline import Pipeline
from vitrine.demo import search, story
from vitrine.errors import ConfigError
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import pipelines


def sample(connection: Connection, settings: Settings, *, terminal: bool = False, ratings: int = 2000) -> str:
    """Prepare a sample that is larger than the cinema of the tests; returns the output."""
    output = StringIO()
    console = Console(file=output, force_terminal=terminal, width=200)
    story.prepare(console, connection, settings, films=100, ratings=ratings)
    return output.getvalue()


def test_the_progress_of_a_fill_is_shown_on_a_terminal_only(connection: Connection, settings: Settings) -> None:
    lines = sample(connection, settings).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["✓ Sample cinema", "✓ Pipelines"]
    assert "100 films, 100 persons, 2,000 ratings, 1,000 likes, 2,000 views" in lines[0]
    shown = sample(connection, settings, terminal=True, ratings=4000)
    assert "Filling the sample cinema" in shown


def test_a_table_without_the_column_is_refused_and_stays_as_it_is(connection: Connection, settings: Settings) -> None:
    connection.execute("ALTER TABLE ugc.ratings RENAME COLUMN rating TO score")
    content = "SELECT md5(string_agg(r::text, ';' ORDER BY id)) AS sum FROM ugc.ratings AS r"
    before = connection.execute(content).fetchone()
    with pytest.raises(ConfigError, match=r"ugc\.ratings in this database has no column `rating`") as refused:
        sample(connection, settings)
    assert refused.value.code == "SAMPLE_LAYOUT"
    assert connection.execute(content).fetchone() == before
    assert connection.execute("SELECT count(score) AS scores FROM ugc.ratings").fetchone() == {"scores": 900}
    assert pipelines.list_all(connection) == []


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "VITRINE_ELASTICSEARCH_URL is not set"),
        ({"url": "http://127.0.0.1:1"}, "target es:film_dim: the cluster is unavailable (ConnectionError)"),
        (
            {"url": "nowhere"},
            "VITRINE_ELASTICSEARCH_URL is not valid: give an address such as https://search.example.com:9200",
        ),
    ],
)
def test_without_a_cluster_the_search_indexes_are_left_out_in_one_sentence(
    connection: Connection, settings: Settings, given: dict[str, str], reason: str
) -> None:
    without = settings.model_copy(update={"connectors": {"elasticsearch": given}})
    output = StringIO()
    assert search.prepare(Console(file=output, width=300), connection, without) == []
    (sentence,) = output.getvalue().splitlines()
    assert sentence.startswith(f"Search indexes are left out: {reason}; ")
    assert sentence.endswith("; `make demo-search` starts an Elasticsearch.")
    assert pipelines.list_all(connection) == []


def test_the_search_indexes_are_left_out_where_they_are_not_allowed(connection: Connection, settings: Settings) -> None:
    allowed = {"allowed_targets": ("analytics.*",), "connectors": {"elasticsearch": {"url": "http://127.0.0.1:1"}}}
    output = StringIO()
    assert search.prepare(Console(file=output, width=300), connection, settings.model_copy(update=allowed)) == []
    assert "target 'es:film_dim' is outside the allowed targets" in output.getvalue()


def test_without_a_cluster_the_demo_disables_its_indexes_and_the_audit_log_has_it(
    connection: Connection, settings: Settings
) -> None:
    for document in search.documents():
        pipelines.create(connection, document.definition)
    search.suspend(connection, settings)
    assert [isinstance(one, Pipeline) and one.definition.enabled for one in pipelines.list_all(connection)] == [
        False
    ] * 3
    changes = connection.execute("SELECT operation, after FROM etl.etl_audit").fetchall()
    assert changes == [{"operation": "pipelines.change", "after": {"enabled": False}}] * 3
