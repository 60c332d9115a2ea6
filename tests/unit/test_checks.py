"""Checks: their definition, their values, and what they find in rows in memory."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from vitrine import input_errors
from vitrine.core.checks import BaseCheck, Check, CheckFailed, CheckResult, combined, refuse_failed
from vitrine.core.row_checks import results_in, unfit_reason
from vitrine.definition.model import Definition
from vitrine.errors import ConfigError
from vitrine.sql.policy import check_sql

TYPES = {
    "id": "integer",
    "title": "text",
    "code": "character(4)",
    "score": "numeric(6,2)",
    "ratio": "double precision",
    "day": "date",
    "at": "timestamp with time zone",
    "local": "timestamp without time zone",
    "hour": "time without time zone",
    "zoned": "time with time zone",
    "yes": "boolean",
    "tag": "uuid",
    "doc": "jsonb",
}
ROW: dict[str, str | None] = {
    "id": "1",
    "title": "one",
    "code": "ab  ",
    "score": "5.50",
    "ratio": "0.1",
    "day": "2024-01-31",
    "at": "2024-01-31 12:00:00.5+00",
    "local": "2024-01-31 12:00:00",
    "hour": "12:30:00",
    "zoned": "12:30:00+02",
    "yes": "t",
    "tag": "5f0c6a52-3a55-4f0e-9a44-0d3f4f5f3c1e",
    "doc": "{}",
}


def check_of(**fields: Any) -> BaseCheck:
    return TypeAdapter(Check).validate_python(fields)


def accepted(column: str, *values: Any) -> BaseCheck:
    return check_of(type="accepted_values", column=column, values=values)


def within(column: str, **bounds: Any) -> BaseCheck:
    return check_of(type="range", column=column, **bounds)


def breaks(check: BaseCheck, **values: str | None) -> bool:
    (result,) = results_in([check], [ROW | values], TYPES, ["id"])
    return not result.passed


# -- definitions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "sentence"),
    [
        ({"type": "nul"}, "checks[0]: give type as not_null, unique, accepted_values, range, row_count, sql"),
        ({"columns": ["a"]}, "checks[0]: give type"),
        ({"type": "not_null", "columns": []}, "checks[0].columns: give at least 1 item(s)"),
        ({"type": "range", "column": "a"}, "checks[0]: give min, max or both"),
        ({"type": "range", "column": "a", "min": True}, "checks[0].min: give a number, or a date or time in quotes"),
        ({"type": "row_count"}, "checks[0]: give min, max, min_ratio or max_ratio"),
        ({"type": "accepted_values", "column": "a", "values": [None]}, "give a text, a number, true or false"),
        ({"type": "range", "column": "a", "max": float("nan")}, "give a text, a number, true or false"),
        ({"type": "not_null", "columns": ["a"], "severity": "error"}, "checks[0].severity: give one of fail, warn"),
        ({"type": "not_null", "columns": ["a"], "colums": 1}, "did you mean `checks[0].columns`?"),
    ],
)
def test_a_wrong_check_is_refused_in_one_sentence(check: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Definition.model_validate({"name": "a", "target_table": "analytics.a", "checks": [check]})
    sentences = [one.sentence for one in input_errors.explain(refused.value.errors(), Definition)]
    assert any(sentence in one for one in sentences), sentences


def test_a_date_of_yaml_is_a_text() -> None:
    from datetime import date

    assert within("day", min=date(2024, 1, 31)) == within("day", min="2024-01-31")


def test_a_check_is_named_by_its_type_and_columns_unless_it_has_a_name() -> None:
    assert check_of(type="not_null", columns=["a", "b"]).label == "not_null (a, b)"
    assert check_of(type="sql", query="SELECT 1 FROM mart").label == "sql"
    assert check_of(type="sql", query="SELECT 1 FROM mart", name="mine").label == "mine"


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "check",
    [
        accepted("id", 1, "2"),
        accepted("title", "one"),
        accepted("code", "ab"),
        accepted("score", 5.5),
        accepted("score", "5.500"),
        accepted("ratio", 0.1),
        accepted("yes", True),
        accepted("day", "2024-01-31"),
        accepted("tag", "5F0C6A52-3A55-4F0E-9A44-0D3F4F5F3C1E"),
        within("score", min=5.5, max="5.50"),
        within("day", min="2024-01-31", max="2024-01-31"),
        within("at", min="2024-01-31T12:00:00.500000Z", max="2024-01-31T14:00:00.5+02:00"),
        within("local", min="2024-01-31 12:00", max="2024-01-31 12:00:00.000"),
        within("hour", min="12:30", max="12:30:00"),
        check_of(type="not_null", columns=list(ROW)),
    ],
    ids=str,
)
def test_values_on_the_bounds_and_in_the_list_pass(check: BaseCheck) -> None:
    assert unfit_reason(check, TYPES, "analytics.a") is None
    assert not breaks(check)


@pytest.mark.parametrize(
    "check",
    [
        accepted("title", "One"),
        accepted("score", 5),
        within("score", max=5.49),
        within("day", max="2024-01-30"),
        within("at", min="2024-01-31T12:00:00.500001Z"),
        within("local", max="2024-01-31 11:59:59.999999"),
        within("hour", min="12:30:01"),
    ],
    ids=str,
)
def test_values_outside_break_the_check(check: BaseCheck) -> None:
    assert breaks(check)


def test_null_breaks_only_not_null_and_nan_lies_in_no_range() -> None:
    assert not breaks(within("score", min=9), score=None)
    assert not breaks(accepted("title", "two"), title=None)
    assert breaks(check_of(type="not_null", columns=["title", "id"]), title=None)
    assert breaks(within("ratio", min=0), ratio="NaN")
    assert not breaks(within("ratio", min=0), ratio="Infinity")
    assert breaks(within("ratio", max=0), ratio="Infinity")


@pytest.mark.parametrize(
    ("day", "below", "above"),
    [
        ("infinity", False, True),
        ("-infinity", True, False),
        ("12024-01-01", False, True),
        ("0044-03-15 BC", True, False),
    ],
)
def test_days_that_python_does_not_know_have_their_place(day: str, below: bool, above: bool) -> None:
    assert breaks(within("day", min="2024-01-01"), day=day) is below
    assert breaks(within("day", max="2024-12-31"), day=day) is above


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        (within("title", min="a"), "range is not defined; use accepted_values"),
        (within("zoned", min="12:00"), "column 'zoned' is time with time zone, for which range is not defined"),
        (accepted("doc", "{}"), "accepted_values is not defined; use a check of type sql"),
        (accepted("yes", "true"), "'true' is no value of column 'yes', which is boolean; give true or false"),
        (accepted("title", 1), "put it in quotes"),
        (accepted("tag", "x"), "write it like 5f0c6a52"),
        (within("id", min=1.5), "give a whole number"),
        (within("ratio", max="1e99"), "give a number that every type of floating point has"),
        (within("score", max="9" * 999), "give a number of fewer digits"),
        (within("day", min="31.01.2024"), "write it like 2024-01-31"),
        (within("at", min="now"), "write it like 2024-01-31 12:30:00+00:00"),
        (check_of(type="unique", columns=["id", "nowhere"]), "names the column 'nowhere'"),
    ],
)
def test_a_check_that_does_not_fit_its_column_is_refused_with_the_remedy(check: BaseCheck, reason: str) -> None:
    assert reason in (unfit_reason(check, TYPES, "analytics.a") or "")


# -- results ----------------------------------------------------------------------------------------------------------


def test_results_of_batches_are_added_up() -> None:
    first = CheckResult("a", "range", "warn", False, 2, ("1", "2"), "outside")
    second = CheckResult("a", "range", "warn", False, 5, ("3", "4", "5", "6", "7"), "outside")
    passed = CheckResult("a", "range", "warn")
    (found,) = combined(combined((passed,), (first,)), (second,))
    assert (found.passed, found.rows, found.keys) == (False, 7, ("1", "2", "3", "4", "5"))
    assert found.sentence == "7 rows outside, for example 1, 2, 3, 4, 5"


def test_only_a_check_of_severity_fail_refuses_the_rows() -> None:
    warned = CheckResult("a", "range", "warn", False, 2, (), "outside")
    assert refuse_failed("analytics.a", (warned,)) == (warned,)
    failed = CheckResult("b", "sql", "fail", False, 1, ("7",), "returned by its query")
    with pytest.raises(CheckFailed) as refused:
        refuse_failed("analytics.a", (warned, failed))
    assert refused.value.code == "CHECK_FAILED"
    assert refused.value.results == (warned, failed)
    assert "check 'b': 1 row returned by its query, for example 7." in str(refused.value)
    assert "'a'" not in str(refused.value)


# -- queries ----------------------------------------------------------------------------------------------------------

ROWS = 'SELECT "id", "we""ird" FROM "etl"."stage_1" AS q'
SUBQUERY = '(SELECT id, "we""ird" FROM etl.stage_1 q)'


@pytest.mark.parametrize(
    ("query", "executed"),
    [
        ("select ID from mart where id > 1 -- end", f"SELECT id FROM {SUBQUERY} mart WHERE id > 1"),
        ("SELECT m.x FROM mart AS m(x)", f"SELECT m.x FROM {SUBQUERY} m(x)"),
        ("TABLE mart", f"SELECT * FROM {SUBQUERY} mart"),
        (
            "WITH a AS (SELECT id FROM mart) SELECT id FROM a",
            f"WITH a AS (SELECT id FROM {SUBQUERY} mart) SELECT id FROM a",
        ),
        (
            "SELECT count(*) FROM ONLY mart HAVING count(*) < 3",
            f"SELECT count(*) FROM {SUBQUERY} mart HAVING count(*) < 3",
        ),
    ],
)
def test_the_rows_take_the_place_of_mart_in_the_syntax_tree(query: str, executed: str) -> None:
    assert check_sql(query).over(ROWS) == executed


@pytest.mark.promise("M5")
@pytest.mark.parametrize(
    "query",
    [
        "",
        "SELECT 1",
        "VALUES (1)",
        "SELECT 1 FROM mart; SELECT 2 FROM mart",
        "DELETE FROM mart",
        "WITH x AS (DELETE FROM mart RETURNING *) SELECT * FROM x, mart",
        "SELECT * INTO t FROM mart",
        "SELECT * FROM mart FOR SHARE",
        "SELECT * FROM pg_class, mart",
        "SELECT * FROM public.mart",
        "SELECT * FROM db.etl.mart",
        'SELECT * FROM "Mart"',
        "SELECT * FROM mart WHERE EXISTS (SELECT FROM etl.etl_tokens)",
        "WITH mart AS (SELECT 1) SELECT * FROM mart",
        "SELECT * FROM (WITH mart AS (SELECT 1 AS a) SELECT a FROM mart) AS x",
        "WITH RECURSIVE r AS (SELECT 1 AS a UNION ALL SELECT a FROM r) SELECT * FROM r, mart",
        "SELECT $1 FROM mart",
        "SELECT pg_sleep(1) FROM mart",
        "SELECT mart.pg_sleep FROM mart",
        "SELECT nextval('x') FROM mart",
        "SELECT public.f(1) FROM mart",
        "SELECT repeat('a', 9) FROM mart",
        "SELECT current_user FROM mart",
        "SELECT 1 OPERATOR(public.+) 1 FROM mart",
        "SELECT 'a'::regclass FROM mart",
        "SELECT 'a'::public.evil FROM mart",
        "SELECT * FROM mart TABLESAMPLE system (1)",
        "SELECT id FROM mart WHERE title COLLATE public.mine > 'a'",
    ],
)
def test_a_query_that_is_more_than_a_select_over_the_rows_is_refused(query: str) -> None:
    with pytest.raises(ConfigError):
        check_sql(query)
