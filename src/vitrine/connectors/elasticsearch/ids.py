"""The `_id` of a document: the text of its key."""

import re
from collections.abc import Sequence

from vitrine.flow.rows import Key

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


def problem(document_id: str) -> str | None:
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
