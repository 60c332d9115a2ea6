"""The rows that the suites move: a key, a text and a time of change; and values of every type in canonical text."""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from vitrine.core.rows import Column
from vitrine_testing.cases import Texts

COLUMNS = (
    Column("id", "integer"),
    Column("note", "text"),
    Column("modified", "timestamp with time zone"),
)


def moment(second: int) -> str:
    """A time of change, in canonical text."""
    return f"2024-01-01 {second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}+00"


def row(number: int, note: str | None = None, second: int | None = None) -> Texts:
    return {"id": str(number), "note": note or f"note {number}", "modified": moment(second or number)}


def rows(first: int, last: int) -> list[Texts]:
    """Rows with these ids, each changed one second after the one before."""
    return [row(number) for number in range(first, last + 1)]


# -- values of every type: ordinary ones, and those that are easily damaged on the way --------------------------------

SAMPLES: dict[str, tuple[str, ...]] = {
    "boolean": ("t", "f"),
    "smallint": ("-32768", "0", "32767"),
    "integer": ("-2147483648", "0", "2147483647"),
    "bigint": ("-9223372036854775808", "9007199254740993", "9223372036854775807"),
    "real": ("-1.5", "3.4028235e+38", "1e-45", "NaN"),
    "double precision": ("0.1", "-0", "1.7976931348623157e+308", "5e-324", "Infinity"),
    "numeric": ("1.00", "0.1", "-12345678901234567890.123456789012345678", "NaN"),
    "numeric(12,2)": ("0.10", "-9999999999.99"),
    "text": ("", " ", "tab\there", "line\nend", "back\\slash", "\\N", "NULL", "Zoë 🎬 e\u0301", "'\"`{},;"),
    "character varying(20)": ("", "Ωmega"),
    "character(5)": ("ab   ",),
    "bytea": ("\\x", "\\x00ff5c0a"),
    "uuid": ("00000000-0000-0000-0000-000000000000", "f47ac10b-58cc-4372-a567-0e02b2c3d479"),
    "date": ("1970-01-01", "0044-03-15 BC", "infinity"),
    "time without time zone": ("00:00:00", "23:59:59.999999"),
    "time with time zone": ("12:30:00+02", "23:59:59.5-03:30"),
    "timestamp without time zone": ("2024-02-29 12:00:00", "1969-12-31 23:59:59.999999", "-infinity"),
    "timestamp with time zone": ("2024-02-29 12:00:00+00", "0001-01-01 00:00:00.000001+00", "infinity"),
    "interval": ("1 mon", "-1 days +02:03:04.5", "26:00:00"),
    "json": ('{"a":1.0,  "a":2}', "null", '"\\u00e9"'),
    "jsonb": ('{"a": 1.00, "b": [1, null, "x\\ty"]}', "null", "[]"),
    "integer[]": ("{}", "{1,NULL,3}", "{{1,2},{3,4}}", "[0:1]={5,6}"),
    "text[]": ('{"",NULL,"NULL","a,b","c\\"d","e\\\\f"}',),
    "inet": ("192.168.0.1/24", "::1"),
    "int4range": ("[1,5)", "empty"),
    "point": ("(1,2.5)",),
}
"""Type: values. The key and cursor columns of the suite need integer, text and timestamp with time zone."""


def sample_rows(
    types: Collection[str], refused: Mapping[str, Collection[str]] = MappingProxyType({})
) -> tuple[tuple[Column, ...], list[Texts]]:
    """A key, and one column per type; each row has the next value of each, NULL where there are no more.

    Values that are `refused` are left out.
    """
    names = sorted(types)
    kept = {name: [one for one in SAMPLES[name] if one not in refused.get(name, ())] for name in names}
    columns = (Column("id", "integer"), *(Column(f"c{at}", name) for at, name in enumerate(names)))
    rows: list[Texts] = []
    for number in range(max(map(len, kept.values())) + 1):
        samples = [kept[name][number] if number < len(kept[name]) else None for name in names]
        rows.append({"id": str(number + 1), **{f"c{at}": value for at, value in enumerate(samples)}})
    return columns, rows
