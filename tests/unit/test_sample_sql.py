"""sql/init_demo_data.sql is written from the scripts of the sample cinema."""

from tests import sample_sql


def test_the_script_is_up_to_date() -> None:
    assert sample_sql.PATH.read_text("utf-8") == sample_sql.text(), "run `make sample-sql`"
