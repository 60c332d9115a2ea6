"""`vitrine sample` on a database of the user: what it adds, refuses and shows."""

from io import StringIO

import pytest
from rich.console import Console

from vitrine.demo import story
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
    assert pipelines.list_page(connection) == []
