"""The file of named statements and the fragments that they share."""

import pytest

from vitrine.store import database

FILE = """
-- fragment held --
-- A sentence
held AS (SELECT 1)

-- first --
-- Another sentence
WITH
    -- include held
SELECT * FROM held;

-- second --
SELECT 2;
"""


def test_a_fragment_stands_where_a_statement_includes_it() -> None:
    assert database.parse(FILE) == {
        "first": "-- Another sentence\nWITH\n-- A sentence\nheld AS (SELECT 1)\nSELECT * FROM held;",
        "second": "SELECT 2;",
    }


def test_a_fragment_that_does_not_exist_is_refused() -> None:
    with pytest.raises(KeyError, match="nothing"):
        database.parse("-- first --\n-- include nothing\nSELECT 1;")


@pytest.mark.parametrize("name", ["hold_lease", "save_cursor", "save_generation", "save_progress", "close_generation"])
def test_every_write_of_a_run_takes_the_same_fence(name: str) -> None:
    fence = "FROM etl.etl_pipelines WHERE id = %(id)s AND lease_token = %(token)s FOR SHARE"
    assert database.statement(name).count(fence) == 1
