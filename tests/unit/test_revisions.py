"""The effect of a changed definition on its state, decided before anything is stored."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from vitrine.connectors.postgres import PostgresSinkOptions, PostgresSourceOptions
from vitrine.definition.model import Definition, StateChoice, TaskType
from vitrine.errors import ConfigError
from vitrine.operations.changes import FIXED_WHILE_RUNNING, IDENTITY, QUERY, changed_fields, merge, must_reset

OLD = Definition.model_validate(
    {
        "name": "genres",
        "source_query": "SELECT id, name, modified FROM content.genre",
        "target_table": "analytics.genres",
        "key_columns": ["id"],
        "batch_size": 100,
        "options": {"touch_column": "updated_at", "horizon_margin": "90s"},
        "tasks": [{"order_index": 1, "task_type": "SQL", "body": "SELECT 1"}],
    }
)


def test_a_merge_of_no_fields_changes_nothing() -> None:
    assert merge(OLD, {}) == OLD
    assert changed_fields(OLD, merge(OLD, {})) == frozenset()


def test_a_merge_of_its_own_fields_changes_nothing() -> None:
    assert merge(OLD, OLD.model_dump(mode="json")) == OLD


@pytest.mark.parametrize(
    ("fields", "changed"),
    [
        ({"batch_size": 7}, {"batch_size"}),
        ({"batch_size": 100}, set[str]()),
        ({"key_columns": []}, {"key_columns"}),
        ({"description": "All of them", "enabled": False}, {"description", "enabled"}),
        ({"tasks": []}, {"tasks"}),
        ({"options": {}}, set[str]()),
        ({"options": {"touch_column": None}}, {"options"}),
        ({"schedule_interval": "5m"}, {"schedule_interval"}),
    ],
)
def test_changed_fields_are_those_with_another_value(fields: dict[str, Any], changed: set[str]) -> None:
    assert changed_fields(OLD, merge(OLD, fields)) == changed


def test_options_are_merged_one_by_one() -> None:
    options = merge(OLD, {"options": {"touch_column": None, "on_null_cursor": "ignore"}}).options
    assert isinstance(options, PostgresSinkOptions)
    assert (options.touch_column, options.on_null_cursor) == (None, "ignore")
    assert isinstance(options, PostgresSourceOptions)
    assert options.horizon_margin == timedelta(seconds=90)


def test_options_of_a_connector_that_is_no_longer_used_are_dropped() -> None:
    changed = merge(OLD, {"source_query": None, "tasks": [], "python_task": "calendar_days"})
    assert changed.options.model_dump(exclude_defaults=True) == {"touch_column": "updated_at"}
    with pytest.raises(ValidationError, match="horizon_margin"):
        merge(changed, {"options": {"horizon_margin": "90s"}})


def test_the_type_follows_the_steps() -> None:
    python = merge(OLD, {"tasks": [], "python_task": "upper_case"})
    assert (OLD.type, python.type) == (TaskType.SQL, TaskType.PYTHON)
    assert merge(python, {"python_task": None}).type is TaskType.SQL
    with pytest.raises(ValidationError, match="type PYTHON contradicts the steps"):
        merge(python, {"python_task": None, "type": "PYTHON"})


def test_steps_are_replaced_as_a_whole() -> None:
    steps = [{"order_index": 5, "task_type": "SQL", "source_table": "content.genre"}]
    assert [step.order_index for step in merge(OLD, {"tasks": steps}).tasks] == [5]


@pytest.mark.parametrize(
    "fields",
    [
        {"unknown": 1},
        {"batch_size": 0},
        {"mode": "incremental"},
        {"options": {"unknown": 1}},
        {"options": [1]},
        {"name": None},
    ],
)
def test_a_merge_is_checked_like_a_new_definition(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        merge(OLD, fields | ({"incremental_id_key": None, "key_columns": []} if "mode" in fields else {}))


REFUSED = "refused"


@pytest.mark.parametrize(
    ("changed", "has_checkpoint", "state", "expected"),
    [
        # without a checkpoint there is nothing to lose; a reset also ends a half-built load
        ("source_query", False, None, False),
        ("source_query", False, "keep", False),
        ("source_query", False, "reset", True),
        ("target_table", False, None, False),
        ("target_table", False, "keep", False),
        ("target_table", False, "reset", True),
        ("batch_size", False, "reset", True),
        # another query may continue from the checkpoint if the user asks for it
        ("source_query", True, None, REFUSED),
        ("source_query", True, "keep", False),
        ("source_query", True, "reset", True),
        ("tasks", True, None, REFUSED),
        ("python_task", True, "keep", False),
        ("source", True, None, REFUSED),
        ("source_type", True, None, REFUSED),
        ("source_type", True, "keep", False),
        # a checkpoint has no meaning for another cursor, key or target
        ("target_table", True, None, REFUSED),
        ("target_table", True, "keep", REFUSED),
        ("target_table", True, "reset", True),
        ("mode", True, "keep", REFUSED),
        ("incremental_key", True, "keep", REFUSED),
        ("incremental_id_key", True, "keep", REFUSED),
        ("key_columns", True, "keep", REFUSED),
        ("source_query target_table", True, "keep", REFUSED),
        # other fields do not concern the checkpoint
        ("batch_size", True, None, False),
        ("batch_size description enabled schedule_interval options", True, None, False),
        ("batch_size", True, "keep", False),
        ("batch_size", True, "reset", True),
        ("", True, None, False),
        ("", True, "reset", True),
    ],
)
def test_a_change_keeps_or_resets_the_checkpoint_or_is_refused(
    changed: str, has_checkpoint: bool, state: StateChoice | None, expected: bool | str
) -> None:
    fields = frozenset(changed.split())
    if expected == REFUSED:
        with pytest.raises(ConfigError, match="--state reset") as refused:
            must_reset(fields, has_checkpoint=has_checkpoint, state=state)
        assert refused.value.code == "STATE_CHOICE"
        assert "state: " not in str(refused.value)  # a YAML file has no such field
    else:
        assert must_reset(fields, has_checkpoint=has_checkpoint, state=state) is expected


def test_the_fields_that_are_fixed_while_running_are_fields_of_a_definition() -> None:
    assert set(Definition.model_fields) >= QUERY | IDENTITY
    assert {"state"} == FIXED_WHILE_RUNNING - QUERY - IDENTITY  # a reset of the state during a run is refused too
    assert not QUERY & IDENTITY
