"""Rows as JSON documents, and the `_id` of each."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from json.encoder import encode_basestring
from typing import Literal, TypeVar

from vitrine.connectors.elasticsearch.encoding import Encoded, Fields, Refused, column_encoder, value_encoder
from vitrine.core import keys, row_checks
from vitrine.core.checks import BaseCheck, Results
from vitrine.core.copytext import text_of, values
from vitrine.core.rows import Batch, Column, Key, Reject, TextRows
from vitrine.errors import ConfigError, DataError

MAX_BYTES = 512
"""Elasticsearch refuses longer ids."""

_SEPARATOR, _ESCAPE = "|", "\\"
_SAFE_CHARACTERS = MAX_BYTES // 4  # no character has more than four bytes in UTF-8
_PART = re.compile(r"((?:[^\\|]|\\.)*)(?:\||\Z)", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def id_of(key: Key) -> str:
    """One column: its text as it is. Several: their texts, separated by `|`; `\\` escapes both characters in a text."""
    return key[0] if len(key) == 1 else _SEPARATOR.join(map(_escape, key))


def ids_of(columns: Sequence[Sequence[str]]) -> Sequence[str]:
    """The same for many keys, given column by column."""
    if len(columns) == 1:
        return columns[0]
    escaped = [texts if _is_plain(texts) else list(map(_escape, texts)) for texts in columns]
    return list(map(_SEPARATOR.join, zip(*escaped, strict=True)))


def key_of(document_id: str, width: int) -> Key:
    """The key of that many columns; ValueError for an id that has another number of them."""
    if width == 1:
        return (document_id,)
    key = tuple(_ESCAPED.sub(r"\1", part) for part in _parts(document_id))
    if len(key) != width or id_of(key) != document_id:
        raise ValueError(f"the id is not a key of {width} columns")
    return key


def id_problem(document_id: str) -> str | None:
    """Why an id cannot be used; None for one that can."""
    if not document_id:
        return "the id of the document would be empty; the key needs a text"
    if len(document_id) > _SAFE_CHARACTERS and len(document_id.encode()) > MAX_BYTES:
        return f"the id of the document would have more than {MAX_BYTES} bytes; use a shorter key"
    return None


def _is_plain(texts: Sequence[str]) -> bool:
    joined = "".join(texts)
    return _SEPARATOR not in joined and _ESCAPE not in joined


def _escape(text: str) -> str:
    # guarantee: F14
    return text.replace(_ESCAPE, _ESCAPE * 2).replace(_SEPARATOR, _ESCAPE + _SEPARATOR)


def _parts(document_id: str) -> list[str]:
    parts: list[str] = []
    at = 0
    while (found := _PART.match(document_id, at)) is not None:
        parts.append(found[1])
        at = found.end()
        if found[0] == found[1]:  # no separator follows
            break
    return parts


Value = TypeVar("Value")

PART_BYTES = 1 << 20
"""Of rows that are split into fields at a time: fields take several times the memory of their text."""

_NULL = values.NULL.encode()


@dataclass(frozen=True)
class Documents:
    """A payload: rows as they are sent."""

    ids: Sequence[str]
    sources: Sequence[bytes]  # a JSON object each, on one line
    refused: Sequence[Reject]  # rows that cannot be a document
    repeated: int  # rows left out, because their key comes again
    checks: Results = ()  # what the checks of the pipeline find in these rows

    @property
    def count(self) -> int:
        return len(self.ids) + len(self.refused)


@dataclass(frozen=True)
class _Table:
    """Rows column by column."""

    columns: tuple[Column, ...]
    fields: Mapping[str, Fields]

    def value(self, name: str, row: int) -> str | None:
        return _value(self.fields[name][row])

    def row_text(self, row: int) -> str:
        """The row for the quarantine."""
        return json.dumps({name: self.value(name, row) for name in self.fields}, ensure_ascii=False)


@dataclass(frozen=True)
class _Refusal:
    column: str | None
    code: str
    reason: str


@dataclass(frozen=True)
class _Part:
    """Some rows of a batch as documents; the source of a refused row means nothing."""

    ids: Sequence[str]
    sources: Sequence[bytes]
    refused: Mapping[int, Reject]
    checked: Mapping[int, Mapping[str, str | None]]  # the values that checks read
    cursors: Fields  # which of two rows with one key is newer


class DocumentEncoder:
    """Documents of rows in any payload that `copytext` converts to text.

    Of rows with one key the last counts if `last_wins`, unless an earlier one is newer by the `cursor` column.
    """

    def __init__(
        self,
        key: Sequence[str],
        *,
        nulls: Literal["omit", "write"],
        cursor: str | None,
        last_wins: bool,
        show_keys: bool = True,
        checks: Sequence[BaseCheck] = (),
        target: str = "",
    ) -> None:
        self._show_keys = show_keys
        self._checks = checks
        self._target = target
        self._key = tuple(key)
        self._nulls = nulls
        self._cursor = cursor
        self._last_wins = last_wins

    def encode(self, batch: Batch) -> Documents:
        parts = [self._part(table, batch) for table in _tables(batch)]
        document_ids = [one for part in parts for one in part.ids]
        sources = [one for part in parts for one in part.sources]
        refused = dict(_numbered(parts, lambda part: part.refused))
        checked = dict(_numbered(parts, lambda part: part.checked))
        repeated = len(document_ids) - len(set(document_ids))
        rows: Sequence[int] = range(len(document_ids))
        if repeated:
            rows = self._newest(document_ids, [one for part in parts for one in part.cursors], batch.columns)
        accepted = [row for row in rows if row not in refused] if refused else rows
        results = self._check([checked[row] for row in accepted] if checked else (), batch.columns)
        if not refused and not repeated:
            return Documents(document_ids, sources, (), 0, results)
        return Documents(
            [document_ids[row] for row in accepted],
            [sources[row] for row in accepted],
            [refused[row] for row in rows if row in refused],
            repeated,
            results,
        )

    def _part(self, table: _Table, batch: Batch) -> _Part:
        document_ids = self._ids(table)
        refusals: dict[int, _Refusal] = {
            row: _Refusal(self._key[0] if len(self._key) == 1 else None, "DOCUMENT_ID", reason)
            for row, one in enumerate(document_ids)
            if (reason := id_problem(one)) is not None
        }
        # a transform may return any text for a JSON column
        sources = self._sources(table, refusals, is_checked=isinstance(batch.payload, TextRows))
        return _Part(
            document_ids,
            sources,
            {row: self._reject(table, row, refusals[row]) for row in sorted(refusals)},
            self._checked(table, len(document_ids)),
            table.fields.get(self._cursor, ()) if self._cursor is not None and self._last_wins else (),
        )

    def _checked(self, table: _Table, count: int) -> Mapping[int, Mapping[str, str | None]]:
        if not self._checks or not count:
            return {}
        row_checks.refuse_unfit(self._checks, _types(table.columns), self._target)
        needed = dict.fromkeys([*self._key, *(name for check in self._checks for name in check.checked)])
        return {row: {name: table.value(name, row) for name in needed} for row in range(count)}

    def _check(self, rows: Sequence[Mapping[str, str | None]], columns: Sequence[Column]) -> Results:
        """Rows of a load are checked once more, when all of them are staged."""
        if not rows:
            return ()
        return row_checks.results_in(self._checks, rows, _types(columns), self._key, show_keys=self._show_keys)

    # -- keys -----------------------------------------------------------------------------------------------------

    def _ids(self, table: _Table) -> Sequence[str]:
        if missing := [name for name in self._key if name not in table.fields]:
            raise ConfigError(f"the rows lack the key column '{missing[0]}'; add it", code="SCHEMA_CHANGED")
        if any(_NULL in table.fields[name] for name in self._key):
            raise DataError(
                f"the source returns rows with NULL in the key ({', '.join(self._key)}); a key must be complete",
                code="NULL_KEY",
            )
        return ids_of([_key_texts(table.fields[name]) for name in self._key])

    def _newest(self, document_ids: Sequence[str], cursors: Fields, columns: Sequence[Column]) -> list[int]:
        """Of rows with one key the last; DataError where that is not what the pipeline asks for."""
        cursor = next((column for column in columns if column.name == self._cursor), None)
        newest: dict[str, int] = {}
        for row, document_id in enumerate(document_ids):
            before = newest.get(document_id)
            if before is not None and not self._last_wins:
                key = keys.readable(keys.to_text(key_of(document_id, len(self._key))))
                which = f" ({key})" if self._show_keys else ""
                raise DataError(
                    f"the source returns the same key{which} more than once; a JOIN may repeat rows, or the key is"
                    " not unique. To keep the last of them, set options.on_duplicate_key: last",
                    code="DUPLICATE_KEY",
                )
            if before is None or cursor is None or not _is_newer(cursors[before], cursors[row], cursor):
                newest[document_id] = row
        return list(newest.values())

    def _key_at(self, table: _Table, row: int) -> Key:
        return tuple(table.value(name, row) or "" for name in self._key)

    # -- values ---------------------------------------------------------------------------------------------------

    def _sources(self, table: _Table, refused: dict[int, _Refusal], *, is_checked: bool) -> list[bytes]:
        """The document of each row; one of a refused row means nothing."""
        # key columns are never NULL: every other member can bring the comma before it
        ordered = sorted(table.columns, key=lambda column: column.name not in self._key)
        parts: list[Iterable[bytes]] = []
        constant = b"{"
        for column in ordered:
            member = (b"," if parts else b"") + encode_basestring(column.name).encode() + b":"
            before, texts, after = self._member(member, column, table, refused, is_checked=is_checked)
            parts += [repeat(constant + before), texts]
            constant = after
        parts.append(repeat(constant + b"}"))
        return list(map(b"".join, zip(*parts)))  # noqa: B905 - `repeat` has no end

    def _member(
        self, member: bytes, column: Column, table: _Table, refused: dict[int, _Refusal], *, is_checked: bool
    ) -> tuple[bytes, Iterable[bytes], bytes]:
        """A constant, the text in each row, and a constant."""
        fields = table.fields[column.name]
        has_null = _NULL in fields
        rows = [row for row, field in enumerate(fields) if field != _NULL] if has_null else range(len(fields))
        present = [fields[row] for row in rows] if has_null else fields
        encoded = _encode(column, present, rows, refused, is_checked=is_checked)
        quote = b'"' if encoded.is_quoted else b""
        if not has_null:
            return member + quote, encoded.texts, quote
        if self._nulls == "write":
            return member, _spread(_wrapped(quote, encoded.texts, quote), fields, b"null"), b""
        return b"", _spread(_wrapped(member + quote, encoded.texts, quote), fields, b""), b""

    def _reject(self, table: _Table, row: int, refusal: _Refusal) -> Reject:
        key = keys.to_text(self._key_at(table, row))
        return Reject(key, refusal.column, refusal.code, refusal.reason, table.row_text(row))


def _tables(batch: Batch) -> Iterator[_Table]:
    """The batch in parts; at least one, so that its columns are always checked."""
    text, width = text_of(batch), len(batch.columns)
    first = 0
    while True:
        last = text.find(b"\n", first + PART_BYTES) + 1 or len(text)
        # a field has neither tabs nor line breaks: one split for all, and every nth is one column
        flat = bytes(text[first:last]).replace(b"\n", b"\t").split(b"\t")
        yield _Table(batch.columns, {column.name: flat[at:-1:width] for at, column in enumerate(batch.columns)})
        first = last
        if first == len(text):
            return


def _numbered(parts: Sequence[_Part], of: Callable[[_Part], Mapping[int, Value]]) -> Iterator[tuple[int, Value]]:
    """By the number of the row in the batch."""
    first = 0
    for part in parts:
        yield from ((first + row, one) for row, one in of(part).items())
        first += len(part.ids)


def _types(columns: Sequence[Column]) -> dict[str, str]:
    return {column.name: column.type for column in columns}


def _value(field: bytes) -> str | None:
    return None if field == _NULL else values.unescape(field.decode())


def _key_texts(fields: Fields) -> Sequence[str]:
    if not fields:
        return []
    joined = b"\n".join(fields).decode()
    texts = joined.split("\n")
    return list(map(values.unescape, texts)) if "\\" in joined else texts


def _encode(
    column: Column, fields: Fields, rows: Sequence[int], refused: dict[int, _Refusal], *, is_checked: bool
) -> Encoded:
    """JSON of the fields of these rows; a refused row is noted."""
    if not fields:
        return Encoded(fields)
    if (encoded := column_encoder(column.type, is_checked=is_checked)(fields)) is not None:
        return encoded
    encode = value_encoder(column.type)
    texts: list[bytes] = []
    for row, field in zip(rows, fields, strict=True):
        try:
            texts.append(encode(values.unescape(field.decode())).encode())
        except Refused as exc:
            texts.append(b"null")
            refused.setdefault(row, _Refusal(column.name, exc.code, exc.reason))
    return Encoded(texts)


def _wrapped(before: bytes, texts: Fields, after: bytes) -> Iterable[bytes]:
    return map(b"".join, zip(repeat(before, len(texts)), texts, repeat(after, len(texts)), strict=True))


def _spread(texts: Iterable[bytes], fields: Fields, absent: bytes) -> list[bytes]:
    """A text for every row: the next one, or that of NULL."""
    given = iter(texts)
    return [absent if field == _NULL else next(given) for field in fields]


def _is_newer(field: bytes, other: bytes, cursor: Column) -> bool:
    """Whether a row is newer than one that was read after it."""
    ours, theirs = _value(field), _value(other)
    return ours is not None and theirs is not None and keys.rank((ours,), (cursor,)) > keys.rank((theirs,), (cursor,))
