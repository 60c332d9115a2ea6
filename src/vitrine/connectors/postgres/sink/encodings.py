"""Finds the text of a batch that the encoding of the target's database cannot hold."""

from collections.abc import Iterator

import psycopg

from vitrine.connectors.postgres.source import cursor_codec as codec
from vitrine.copytext import text_of
from vitrine.errors import DataError
from vitrine.flow.rows import Batch, BinaryRows
from vitrine.postgres import Connection

REFUSALS = (psycopg.errors.UntranslatableCharacter, psycopg.errors.CharacterNotInRepertoire)


def concerns_text(connection: Connection, error: psycopg.Error) -> bool:
    """Whether a text could not be converted; the same error refuses a JSON document with \\u0000 for jsonb."""
    is_utf8 = connection.info.parameter_status("server_encoding") == "UTF8"
    return isinstance(error, REFUSALS) and not (is_utf8 and isinstance(error, psycopg.errors.UntranslatableCharacter))


def refusal(connection: Connection, batch: Batch, target: str) -> DataError:
    """The error for a batch that the server could not convert; the transaction must be usable."""
    encoding = connection.info.parameter_status("server_encoding") or "unknown"
    column = next((name for name, data in _columns(batch) if not _is_known(connection, data)), None)
    named = f"column '{column}'" if column else "a column"
    return DataError(
        f"{named} has a character that the encoding of target {target}'s database ({encoding}) lacks; change it in the"
        " query, or use a database with the encoding UTF8",
        code="ENCODING",
    )


def _is_known(connection: Connection, data: bytes) -> bool:
    try:
        with connection.transaction():
            connection.execute("SELECT convert_from(%b, 'UTF8')", [data])
    except REFUSALS:
        return False
    return True


def _columns(batch: Batch) -> Iterator[tuple[str, bytes]]:
    """Each column with the bytes of all its values."""
    for index, column in enumerate(batch.columns):
        if isinstance(batch.payload, BinaryRows):
            data = batch.payload.data
            found = (codec.fields(data, [index], start)[0] or b"" for start in codec.starts(data))
        else:
            lines = bytes(text_of(batch)).split(b"\n")
            found = (line.split(b"\t")[index] for line in lines if line)
        yield column.name, b"".join(_decodable(part) for part in found)


def _decodable(part: bytes) -> bytes:
    """The bytes of a text; of another type, in binary format, nothing that could be taken for one."""
    try:
        part.decode()
    except UnicodeDecodeError:
        return b""
    return part.replace(b"\0", b"")
