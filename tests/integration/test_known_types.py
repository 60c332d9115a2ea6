"""The facts that are known without the catalog equal those that the catalog has."""

import pytest

from vitrine.connectors.postgres import types
from vitrine.postgres import Connection

# precisions, lengths and scales as a column can have them, and the forms that only the catalog formats
MODIFIED = """
    SELECT a.atttypid AS oid, a.atttypmod AS modifier FROM pg_attribute a
     WHERE a.attrelid = 'pg_temp.modified'::regclass AND a.attnum > 0
"""


@pytest.mark.parametrize("oid", types.BUILT_IN_OIDS)
def test_a_built_in_type_is_known_as_the_catalog_describes_it(connection: Connection, oid: int) -> None:
    with connection.transaction():
        connection.execute("SET LOCAL search_path = pg_catalog")
        assert [types.built_in_facts(oid, types.UNSET)] == types.from_catalog(connection, [(oid, types.UNSET)])


def test_lengths_scales_and_precisions_have_the_names_that_the_catalog_gives_them(connection: Connection) -> None:
    connection.execute(
        "CREATE TEMP TABLE modified (a varchar(1), b varchar(500), c char(7), d numeric(5), e numeric(12, 4),"
        " f numeric(3, -2), g numeric(2, 5), h timestamptz(0), i timestamp(3), j time(6), k interval day to second,"
        " l interval(2), m numeric(1000, 1000), n varchar, o numeric)"
    )
    wanted = [(row["oid"], row["modifier"]) for row in connection.execute(MODIFIED)]
    with connection.transaction():
        connection.execute("SET LOCAL search_path = pg_catalog")
        found = types.from_catalog(connection, wanted)
        assert types.describe(connection, wanted) == found
    known = [types.built_in_facts(*one) for one in wanted]
    assert [ours for ours, theirs in zip(known, found, strict=True) if ours is not None and ours != theirs] == []
    assert sum(facts is None for facts in known) == 2  # the intervals with a modifier
