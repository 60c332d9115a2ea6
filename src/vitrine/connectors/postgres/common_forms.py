"""Values in the form that both sides of a comparison have in common, as SQL."""

from psycopg import sql

from vitrine.connectors.postgres import ranges
from vitrine.flow.rows import Column, CommonForm
from vitrine.postgres import raw

_LAST_DATE = "294276-12-31"
"""A later date has no timestamp."""


def in_form(value: sql.Composable, type_name: str, form: CommonForm, column: Column) -> sql.Composable:
    """The text of a value of the given type; `column` has the type of the comparison."""
    match form:
        case CommonForm.SAME | CommonForm.OUTPUT:
            return ranges.text(value, type_name)
        case CommonForm.NUMBER:
            return sql.SQL("CAST(trim_scale({}) AS text)").format(ranges.number(value, type_name))
        case CommonForm.FLOAT:
            return sql.SQL("CAST({} AS text)").format(cast(value, "double precision"))
        case CommonForm.MOMENT:
            return _moment(value, type_name)
        case CommonForm.TIME:
            return sql.SQL("CAST({} AS text)").format(cast(value, "time with time zone"))
        case CommonForm.TEXT:
            return cast(value, "text")
        case CommonForm.PADDED:
            return sql.SQL("rtrim({}, ' ')").format(cast(value, "text"))
        case CommonForm.JSON:
            return sql.SQL("CAST({} AS text)").format(cast(value, "jsonb"))
        case CommonForm.PARSED:
            return ranges.text(cast(value, column.type), column.type)


def _moment(value: sql.Composable, type_name: str) -> sql.Composable:
    moment = sql.SQL("CAST({} AS text)").format(cast(value, "timestamp with time zone"))
    if type_name != "date":
        return moment
    beyond = sql.SQL("{0} > {1} AND isfinite({0})").format(value, cast(sql.Literal(_LAST_DATE), "date"))
    return sql.SQL("CASE WHEN {} THEN CAST({} AS text) ELSE {} END").format(beyond, value, moment)


def cast(value: sql.Composable, type_name: str) -> sql.Composed:
    return sql.SQL("CAST({} AS {})").format(value, raw(type_name))
