"""The list of grants against the migrations: a new table or column needs a decision who may use it."""

import re
from pathlib import Path

from vitrine.definition.model import Definition
from vitrine.store.roles import CHECKPOINT, DEFINITION, FILE, FIXED, LEASE, OUTCOME, REQUEST, TABLES

MIGRATIONS = Path(__file__).parents[2] / "src" / "vitrine" / "store" / "migrations"
SCRIPTS = "\n".join(path.read_text("utf-8") for path in sorted(MIGRATIONS.glob("*.sql")))


def columns_of(table: str) -> set[str]:
    """Every column that a migration creates in the table or adds to it."""
    created = re.search(rf"CREATE TABLE etl\.{table} \((.*?)\n\);", SCRIPTS, re.DOTALL)
    assert created is not None
    columns = set(re.findall(r"^    ([a-z_]+)\s+[a-z]", created[1], re.MULTILINE))
    for change in re.findall(rf"ALTER TABLE etl\.{table}\b(.*?);", SCRIPTS, re.DOTALL):
        columns |= set(re.findall(r"ADD COLUMN ([a-z_]+)", change))
    return columns - {"end"}


def test_every_table_and_sequence_of_a_migration_has_an_entry_in_the_list_of_grants() -> None:
    created = re.findall(r"CREATE (?:TABLE|SEQUENCE) etl\.([a-z_]+)", SCRIPTS)
    assert len(created) > 5
    assert set(created) - TABLES.keys() == set()


def test_every_column_of_a_pipeline_belongs_to_exactly_one_group() -> None:
    groups = [*DEFINITION, *FILE, *LEASE, *OUTCOME, *REQUEST, *FIXED]
    assert len(groups) == len(set(groups))
    assert columns_of("etl_pipelines") == set(groups)


def test_every_field_of_a_definition_is_configuration() -> None:
    assert set(Definition.model_fields) - {"tasks", "after"} <= set(DEFINITION)


def test_what_a_reset_clears_are_columns_of_the_state() -> None:
    assert set(CHECKPOINT) <= columns_of("etl_state")


def test_no_account_may_change_the_audit_log_or_choose_the_number_and_the_time_of_an_entry() -> None:
    recorded = columns_of("etl_audit") - {"id", "at"}
    for rights in (TABLES["etl_audit"].runner, TABLES["etl_audit"].api):
        assert rights.pairs() == {("SELECT", ""), *(("INSERT", column) for column in recorded)}
