"""Takes rows that a column marks as deleted out of a batch; their keys are deleted from the target instead."""

from collections.abc import Sequence
from dataclasses import replace

from vitrine.copytext import text_of, values
from vitrine.errors import ConfigError
from vitrine.flow.marks import is_marked
from vitrine.flow.protocols import Transformer
from vitrine.flow.rows import Batch, Key, TextRows


def drop_marked(column: str, key: Sequence[str]) -> Transformer:
    """A step after all others; its batches are in the text format."""

    def drop(batch: Batch) -> Batch:
        if not batch.columns:
            return batch  # a transform has returned no row yet
        places = {one.name: at for at, one in enumerate(batch.columns)}
        if column not in places:
            raise ConfigError(
                f"options.delete_column '{column}' is not a column of the rows; they have: {', '.join(places)}",
                code="DELETE_COLUMN",
            )
        marked, mark = places[column], batch.columns[places[column]]
        kept: list[bytes] = []
        deleted: list[Key] = []
        for line in bytes(text_of(batch)).split(b"\n")[:-1]:
            fields = line.split(b"\t")
            if is_marked(_text(fields[marked]), mark):
                deleted.append(tuple(_text(fields[places[name]]) or "" for name in key))
            else:
                kept.append(line + b"\n")
        return replace(batch, payload=TextRows(b"".join(kept), len(kept)), deleted=tuple(deleted))

    return drop


def _text(field: bytes) -> str | None:
    text = field.decode()
    return None if text == values.NULL else values.unescape(text)
