"""The page on types says what happens to every type of PostgreSQL, and that is what happens."""

import os
import re

import pytest

from tests import type_matrix
from tests.helpers import kinds
from tests.helpers.kinds import Kind
from tests.type_matrix import EXACT, LANES, ROLES, Cell, Examiner, Lane, Role
from vitrine.postgres import Connection
from vitrine.settings import Settings

CODES = frozenset({"KEY_TYPE", "CURSOR_TYPE"})
"""What a type may be refused for: that it cannot be a key or a cursor."""

# Values of these types are created by the server alone
NOT_FOR_COLUMNS = frozenset(
    {
        *("gtsvector", "pg_node_tree", "pg_ndistinct", "pg_dependencies", "pg_mcv_list"),
        *("pg_brin_bloom_summary", "pg_brin_minmax_multi_summary"),
    }
)

pytestmark = pytest.mark.skipif(
    os.environ.get("VITRINE_TEST_POSTGRES", "18") != "18", reason="the page is about PostgreSQL 18"
)


@pytest.fixture
def page() -> str:
    return type_matrix.PAGE.read_text("utf-8")


@pytest.mark.promise("J3", "J9", "J14", "K1")
@pytest.mark.parametrize("lane", LANES)
def test_every_type_is_carried_as_the_page_says(
    lane: Lane, page: str, connection: Connection, settings: Settings
) -> None:
    """Every type as a column; as key and as cursor every third one in each lane, and all of them in three lanes."""
    examiner = Examiner(connection, settings)
    found: dict[tuple[Kind, Role], Cell] = {
        (kind, "column"): cell for kind, cell in examiner.columns(examiner.kinds, lane).items()
    }
    place = list(LANES).index(lane)
    for number, kind in enumerate(examiner.kinds):
        if number % len(LANES) == place:
            found |= {(kind, role): examiner.cell(kind, role, lane) for role in ROLES[1:]}
    written = type_matrix.cells(page)
    differing = [
        f"{kind.name} as {role}: {cell} instead of {written[kind.name, role, lane]}"
        for (kind, role), cell in found.items()
        if cell != written[kind.name, role, lane]
    ]
    assert not differing, "\n".join(["run `make types` and read the difference:", *differing])


@pytest.mark.promise("K1")
def test_every_type_is_exact_as_a_column_and_refused_only_as_key_or_cursor(page: str) -> None:
    cells = type_matrix.cells(page)
    assert {name: cell for (name, role, _), cell in cells.items() if role == "column" and cell != EXACT} == {}
    assert {cell.result for cell in cells.values()} <= {"exact", "refused"}
    codes = {code for cell in cells.values() for code in re.findall(r"^`(\w+)`", cell.sentence)}
    assert codes <= CODES


def test_the_page_has_every_type_that_a_column_can_have(connection: Connection, page: str) -> None:
    kinds.define(connection)
    rows = connection.execute(
        "SELECT typname AS name, format_type(oid, NULL) AS type FROM pg_type"
        " WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype IN ('b', 'r', 'm')"
        "   AND (typcategory <> 'A' OR typname IN ('int2vector', 'oidvector')) AND typname <> ALL (%s)",
        [list(NOT_FOR_COLUMNS)],
    ).fetchall()
    listed = {kind.type.split("(")[0] for kind in kinds.ALL} | {kind.type for kind in kinds.ALL}
    listed |= {re.sub(r"\(\d+\)", "", kind.type) for kind in kinds.ALL}
    assert [row["type"] for row in rows if row["type"] not in listed] == []
    assert {kind.name for kind in kinds.ALL if kind.needs in (None, "vector")} == {
        name for name, _, _ in type_matrix.cells(page)
    }
