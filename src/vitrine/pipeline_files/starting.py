"""A first YAML file for a table of a source."""

import re

from vitrine.model import NAME
from vitrine.pipeline_files.writing import SCHEMA_LINE, dump

LINE_LENGTH = 88


class Starting:
    """What the file says about one table."""

    def __init__(
        self,
        schema: str,
        table: str,
        columns: list[str],
        key: list[str],
        cursor: str | None,
        *,
        source: str = "default",
        target_schema: str = "analytics",
    ) -> None:
        self.name = _pipeline_name(table)
        self._from = f"{quoted(schema)}.{quoted(table)}"
        self._columns = columns
        self._key = key
        self.cursor = cursor if len(key) == 1 else None  # without a key of one column, nothing breaks ties
        self._source = source
        self._target = f"{target_schema}.{self.name}"

    def text(self) -> str:
        fields: dict[str, object] = {
            "name": self.name,
            "description": f"Rows of {self._from}",
            **({"source": self._source} if self._source != "default" else {}),
            "source_query": self._query(),
            "target_table": self._target,
        }
        if self.cursor is not None:
            fields |= {"mode": "incremental", "incremental_key": self.cursor, "incremental_id_key": self._key[0]}
        if self._key:
            fields["key_columns"] = list(self._key)
        return f"{SCHEMA_LINE}{dump(fields)}{self._notes()}"

    def _query(self) -> str:
        lines: list[str] = []
        line = "SELECT"
        for number, column in enumerate(self._columns):
            part = f" {quoted(column)}" + ("," if number < len(self._columns) - 1 else "")
            if len(line) + len(part) > LINE_LENGTH:
                lines.append(line)
                line = "      "
            line += part
        return "\n".join([*lines, line, f"  FROM {self._from}"])

    def _notes(self) -> str:
        notes = ["# schedule_interval: 5m   # without it, the pipeline runs by request only"]
        if not self._key:
            notes.append("# The table has no primary key: give the columns that identify a row\nkey_columns: []")
        elif self.cursor is None:
            notes.append(
                "# mode: incremental reads only changed rows; it needs incremental_key, a column that grows with"
            )
            notes.append("# every change, and a key of one column. Without it, every run reads all rows")
        else:
            notes.append("# Rows deleted at the source stay in the mart until `vitrine run NAME --full`")
        return "\n".join(notes) + "\n"


_RESERVED = (
    "all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate collation"
    " column concurrently constraint create cross current_catalog current_date current_role current_schema current_time"
    " current_timestamp current_user default deferrable desc distinct do else end except false fetch for foreign freeze"
    " from full grant group having ilike in initially inner intersect into is isnull join lateral leading left like"
    " limit localtime localtimestamp natural not notnull null offset on only or order outer overlaps placing primary"
    " references returning right select session_user similar some symmetric system_user table tablesample then to"
    " trailing true union unique user using variadic verbose when where window with"
)
_KEYWORDS = frozenset(_RESERVED.split())


def quoted(name: str) -> str:
    """The name as SQL writes it, in quotes only where they are needed."""
    if re.fullmatch(r"[a-z_][a-z0-9_]*", name) and name not in _KEYWORDS:
        return name
    return '"' + name.replace('"', '""') + '"'


def _pipeline_name(table: str) -> str:
    """A valid name for a pipeline and its target that resembles the name of the table."""
    name = re.sub(r"[^a-z0-9_]+", "_", table.lower()).strip("_")
    name = name if re.match(r"[a-z]", name) else f"t_{name}"
    name = name[:60]
    return name if re.fullmatch(NAME, name) else "table_copy"
