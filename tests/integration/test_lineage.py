"""Lineage: the tables that queries read, and the marts and indexes that pipelines write."""

from collections.abc import Iterator
from itertools import count

import pytest
from pydantic import SecretStr

from tests.helpers.access import context
from tests.helpers.pipelines import create
from tests.helpers.recording import record_statements
from vitrine.core.status import Status
from vitrine.operations import definitions, overview
from vitrine.operations.bodies.overview import Cause, Graph, State
from vitrine.operations.context import Role
from vitrine.operations.overview import Memory
from vitrine.postgres import Connection, raw
from vitrine.settings import Settings
from vitrine.sql import parse as policy


def read(settings: Settings, connection: Connection, memory: Memory | None = None) -> Graph:
    return overview.read_lineage(context(settings, connection, Role.VIEWER), memory=memory or Memory())


def edges(graph: Graph) -> set[tuple[str, str]]:
    return set(graph.edges_between(graph.nodes))


@pytest.fixture
def chain(connection: Connection) -> None:
    """A mart, and an index that is made from it."""
    create(
        connection,
        "film_dim",
        source_query="""WITH f AS (SELECT id FROM content.film_work)
            SELECT f.id, count(*) AS genres FROM f JOIN content.genre_film_work g ON g.film_work_id = f.id
             GROUP BY f.id""",
    )
    create(connection, "films", source_query="SELECT id, genres FROM analytics.film_dim", target_table="es:films")


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every query that is parsed."""
    queries: list[str] = []
    parse = policy.relations_of

    def recorded(sql: str) -> frozenset[tuple[str, str]]:
        queries.append(sql)
        return parse(sql)

    monkeypatch.setattr(policy, "relations_of", recorded)
    return queries


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return record_statements(monkeypatch)


@pytest.mark.usefixtures("chain")
def test_a_mart_that_another_pipeline_reads_connects_both(settings: Settings, connection: Connection) -> None:
    found = read(settings, connection)
    assert edges(found) == {
        ("table:/content.film_work", "pipeline:film_dim"),
        ("table:/content.genre_film_work", "pipeline:film_dim"),
        ("pipeline:film_dim", "table:/analytics.film_dim"),
        ("table:/analytics.film_dim", "pipeline:films"),
        ("pipeline:films", "table:/es:films"),
    }
    assert (found.topology.unread, found.topology.is_cut) == (0, False)


@pytest.mark.usefixtures("chain")
def test_a_failed_pipeline_marks_what_depends_on_it(settings: Settings, connection: Connection) -> None:
    connection.execute("UPDATE etl.etl_pipelines SET status = 'FAILED' WHERE name = 'film_dim'")
    found = read(settings, connection)
    assert found.causes["table:/es:films"] == Cause("failed", "film_dim")
    assert "table:/content.film_work" not in found.causes


@pytest.mark.usefixtures("chain")
def test_a_late_mart_marks_what_depends_on_it(settings: Settings, connection: Connection) -> None:
    connection.execute("""UPDATE etl.etl_pipelines
        SET schedule_interval = '30s', fresh_as_of = now() - interval '1 h' WHERE name = 'film_dim'""")
    assert read(settings, connection).causes["table:/es:films"] == Cause("late", "film_dim")


def test_the_reader_account_of_the_store_reads_the_same_tables(
    settings: Settings, connection: Connection, database_url: str
) -> None:
    as_reader = database_url.replace("://", "://reader:secret@", 1) if "@" not in database_url else database_url
    other = settings.model_copy(
        update={"sources": {"default": SecretStr(as_reader), "crm": SecretStr("postgresql://crm.example/crm")}}
    )
    create(connection, "here")
    create(connection, "there", source="crm")
    found = read(other, connection)
    assert ("table:/content.genre", "pipeline:here") in edges(found)
    assert ("table:crm/content.genre", "pipeline:there") in edges(found)


def test_a_python_reader_and_a_step_with_a_table_are_sources(settings: Settings, connection: Connection) -> None:
    create(
        connection,
        "calendar",
        source_query=None,
        tasks=[{"order_index": 1, "task_type": "PYTHON", "body": "calendar_days"}],
    )
    create(
        connection,
        "genres",
        source_query=None,
        tasks=[{"order_index": 1, "task_type": "SQL", "source_table": "content.genre"}],
    )
    found = edges(read(settings, connection))
    assert ("reader:calendar_days", "pipeline:calendar") in found
    assert ("table:/content.genre", "pipeline:genres") in found


def test_a_query_that_cannot_be_parsed_hides_no_pipeline(settings: Settings, connection: Connection) -> None:
    create(connection, "broken")
    connection.execute("UPDATE etl.etl_pipelines SET source_query = 'SELEC 1'")
    assert edges(read(settings, connection)) == {("pipeline:broken", "table:/analytics.broken")}


@pytest.mark.usefixtures("chain")
def test_each_version_of_a_query_is_parsed_once(settings: Settings, connection: Connection, parsed: list[str]) -> None:
    memory = Memory()
    read(settings, connection, memory)
    assert len(parsed) == 2
    read(settings, connection, memory)
    assert len(parsed) == 2
    connection.execute("""UPDATE etl.etl_pipelines SET config_version = config_version + 1,
        source_query = 'SELECT id FROM content.person' WHERE name = 'films'""")
    assert ("table:/content.person", "pipeline:films") in edges(read(settings, connection, memory))
    assert len(parsed) == 3


@pytest.mark.usefixtures("chain")
def test_a_refresh_reads_states_only_and_a_changed_definition_is_the_only_one_parsed(
    settings: Settings, connection: Connection, parsed: list[str], executed: list[str]
) -> None:
    memory = Memory()
    first = read(settings, connection, memory)
    assert len(parsed) == 2
    executed.clear()
    assert read(settings, connection, memory) is first
    assert executed == ["get_lineage_version", "list_crons", "list_lineage_states"]
    connection.execute("UPDATE etl.etl_pipelines SET status = 'FAILED' WHERE name = 'film_dim'")
    failed = read(settings, connection, memory)
    assert failed.topology is first.topology
    assert (failed.state("pipeline:film_dim"), failed.state("pipeline:films")) == (
        State(Status.FAILED, "failed"),
        State(),
    )
    assert "list_lineage" not in executed
    assert len(parsed) == 2
    with_index = overview.read_lineage(context(settings, connection), memory=memory)
    definitions.change(context(settings, connection), "film_dim", {"description": "all films"}, validate=False)
    changed = read(settings, connection, memory)
    assert changed.topology is not with_index.topology
    assert edges(changed) == edges(first)
    assert len(parsed) == 3, "one query, of the changed pipeline"
    assert executed.count("list_reading_steps") == 1


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE etl.etl_pipelines SET config_version = config_version + 1 WHERE name = 'films'",
        "UPDATE etl.etl_pipelines SET name = 'other' WHERE name = 'films'",
        "UPDATE etl.etl_pipelines SET target_table = 'es:other' WHERE name = 'films'",
        "UPDATE etl.etl_pipelines SET enabled = false WHERE name = 'films'",
        "DELETE FROM etl.etl_pipelines WHERE name = 'films'",
    ],
)
@pytest.mark.usefixtures("chain")
def test_the_graph_after_a_change_is_the_one_that_a_new_process_makes(
    settings: Settings, connection: Connection, change: str
) -> None:
    memory = Memory()
    before = read(settings, connection, memory)
    connection.execute(raw(change))
    after, anew = read(settings, connection, memory), read(settings, connection)
    assert after.topology is not before.topology
    assert (edges(after), after.nodes) == (edges(anew), anew.nodes)


def test_a_source_that_is_another_database_now_changes_the_graph(
    settings: Settings, connection: Connection, database_url: str
) -> None:
    create(connection, "here", source="crm")
    memory = Memory()
    there, same = (
        settings.model_copy(update={"sources": {"crm": SecretStr(url)}})
        for url in ("postgresql://crm.example/crm", database_url)
    )
    assert "table:crm/content.genre" in read(there, connection, memory).nodes
    assert "table:/content.genre" in read(same, connection, memory).nodes


def test_very_many_queries_are_parsed_by_several_calls(
    settings: Settings, connection: Connection, parsed: list[str]
) -> None:
    for number in range(8):
        create(connection, f"mart_{number}")
    memory, clock = Memory(), slow_clock()
    first = overview.read_lineage(context(settings, connection), memory=memory, now=lambda: next(clock))
    assert first.topology.unread == 8 - len(parsed)
    assert 0 < len(parsed) < 8
    assert len([id for id in first.nodes if id.startswith("pipeline:")]) == 8  # all are shown meanwhile
    for _ in range(8):
        overview.read_lineage(context(settings, connection), memory=memory, now=lambda: next(clock))
    assert (read(settings, connection, memory).topology.unread, len(parsed)) == (0, 8)


def slow_clock() -> Iterator[float]:
    """Each look at it takes a third of a second."""
    return (number / 3 for number in count())


def test_what_is_remembered_has_a_limit() -> None:
    memory = Memory(limit=2)
    versions = [(None, None, number) for number in range(3)]
    for version in versions:
        memory.add(version, overview.Reads())  # type: ignore[arg-type]
    assert [memory.get(version) is not None for version in versions] == [False, True, True]  # type: ignore[arg-type]
