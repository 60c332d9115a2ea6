"""Task plans as their users write them: the last step may name the target, and `map_fields` maps without code."""

from typing import Any

import pytest

from tests.helpers.running import create, differences, run, succeed
from vitrine.core.status import Status
from vitrine.definition.model import Definition
from vitrine.definition.yaml import Document
from vitrine.errors import ConfigError
from vitrine.operations import changes
from vitrine.plan import validation
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import pipelines, queue

QUERY = "SELECT id, name, modified FROM content.genre"
READ: dict[str, Any] = {"order_index": 10, "task_type": "SQL", "body": QUERY}
OVERRIDE = {**READ, "target_table": "analytics.other"}
GENRES: dict[str, Any] = {"name": "genres", "target_table": "analytics.genres", "key_columns": ["id"]}


def mapping(**options: Any) -> dict[str, Any]:
    return {"order_index": 20, "task_type": "PYTHON", "body": "map_fields", "options": options}


# -- the target of the last step --------------------------------------------------------------------------------------


def test_the_last_step_overrides_the_target_and_the_other_table_is_not_created(
    connection: Connection, settings: Settings
) -> None:
    genres = create(connection, settings, **GENRES, tasks=[OVERRIDE])
    assert pipelines.get(connection, "genres").definition.target_table == "analytics.other"
    validation.validate(genres.definition, settings)
    succeed(connection, settings, genres)
    assert differences(connection, QUERY, "analytics.other", "id") == []
    row = connection.execute("SELECT to_regclass('analytics.genres') AS found").fetchone()
    assert row == {"found": None}


def test_the_target_of_the_last_step_must_be_allowed(connection: Connection, settings: Settings) -> None:
    with pytest.raises(ConfigError, match=r"content\.genre"):
        create(connection, settings, **GENRES, tasks=[{**READ, "target_table": "content.genre"}])
    # what is overridden is not written
    create(connection, settings, **GENRES | {"target_table": "content.genre"}, tasks=[OVERRIDE])


def test_one_pipeline_writes_to_the_target_of_a_last_step(connection: Connection, settings: Settings) -> None:
    create(connection, settings, **GENRES, tasks=[OVERRIDE])
    second: dict[str, Any] = {**GENRES, "name": "second", "source_query": QUERY}
    with pytest.raises(ConfigError) as taken:
        create(connection, settings, **second | {"target_table": "analytics.other"})
    assert taken.value.code == "TARGET_TAKEN"
    create(connection, settings, **second)  # the target that the first pipeline overrides is free
    third: dict[str, Any] = {"name": "third", "key_columns": ["id"], "target_table": "analytics.third"}
    with pytest.raises(ConfigError) as taken:
        create(connection, settings, **third, tasks=[{**READ, "target_table": "analytics.genres"}])
    assert taken.value.code == "TARGET_TAKEN"


def test_a_row_that_names_another_target_than_its_last_step_is_not_run(
    connection: Connection, settings: Settings
) -> None:
    create(connection, settings, **GENRES, tasks=[OVERRIDE])
    connection.execute("UPDATE etl.etl_pipelines SET target_table = 'analytics.genres'")
    pipelines.request_run(connection, "genres", trigger="cli")
    assert queue.claim_next(connection, runner="tests", ttl=settings.lease_ttl) is None
    assert pipelines.get(connection, "genres").status is Status.FAILED


def test_a_target_that_the_last_step_overrides_cannot_be_changed_without_the_step(
    connection: Connection, settings: Settings
) -> None:
    create(connection, settings, **GENRES, tasks=[OVERRIDE])
    with pytest.raises(ConfigError, match=r"step 10 has the target_table 'analytics\.other'"):
        changes.change(connection, settings, "genres", {"target_table": "analytics.third"})
    tasks = [{**READ, "target_table": "analytics.third"}]
    changed = changes.change(connection, settings, "genres", {"tasks": tasks})
    assert changed.definition.target_table == "analytics.third"


def test_documents_with_an_override_are_applied_again_without_a_change(
    connection: Connection, settings: Settings
) -> None:
    document = Document("a", {**GENRES, "tasks": [OVERRIDE]})
    for outcome in ("created", "unchanged"):
        (applied,) = changes.apply_all(connection, settings, [document], None)
        assert (applied.name, applied.outcome, applied.differences) == ("genres", outcome, ())


def test_the_options_are_those_of_the_connector_that_the_last_step_names() -> None:
    tasks = [{**READ, "target_table": "es:genres"}]
    definition = Definition.model_validate({**GENRES, "tasks": tasks, "options": {"keep_generations": 2}})
    assert definition.target_table == "es:genres"


# -- map_fields -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_fields_are_mapped_on_their_way_to_the_mart(connection: Connection, settings: Settings, mode: str) -> None:
    cursor = {"incremental_key": "modified"} if mode == "incremental" else {}
    renamed = {"name": "title", "size": "length"}
    step = mapping(rename=renamed, trim=["title"], cast={"length": "bigint"}, default={"length": 0})
    query = "SELECT id, ' ' || name || ' ' AS name, length(name)::text AS size, modified FROM content.genre"
    genres = create(connection, settings, **GENRES, mode=mode, **cursor, tasks=[{**READ, "body": query}, step])
    succeed(connection, settings, genres)
    expected = "SELECT id, name AS title, length(name)::bigint AS length, modified FROM content.genre"
    assert differences(connection, expected, "analytics.genres", "id") == []


def test_a_cast_that_fails_names_key_and_column_and_not_the_value(connection: Connection, settings: Settings) -> None:
    connection.execute("CREATE TABLE ugc.sizes AS SELECT n AS id, '1' AS size FROM generate_series(1, 9) n")
    connection.execute("UPDATE ugc.sizes SET size = 'secret' WHERE id = 7")
    query = "SELECT id, size FROM ugc.sizes"
    genres = create(connection, settings, **GENRES, tasks=[{**READ, "body": query}, mapping(cast={"size": "bigint"})])
    error = run(connection, settings, genres).error
    assert error is not None
    assert error.code == "TRANSFORM_ERROR"
    assert "failed at key 7: cast: a value of column 'size' is no bigint" in str(error)
    assert "secret" not in str(error)
