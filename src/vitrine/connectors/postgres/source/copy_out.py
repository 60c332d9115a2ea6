"""Prepared statements and COPY output by the extended query protocol, with the driver's non-blocking calls."""

import select
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.pq import ExecStatus

from vitrine.postgres import Connection


@dataclass(frozen=True)
class Described:
    """A column of a query as the server describes it."""

    name: str
    type_oid: int
    modifier: int
    # the column of a table that it shows; 0: it is an expression
    table_oid: int = field(default=0, compare=False)
    number: int = field(default=0, compare=False)


def prepare(connection: Connection, text: str) -> list[Described]:
    """The columns of a query, without executing it; in one round trip."""
    pgconn = connection.pgconn
    pgconn.enter_pipeline_mode()
    pgconn.send_prepare(b"", text.encode())
    pgconn.send_describe_prepared(b"")
    _, result = _end_pipeline(connection)
    return [
        Described(
            (result.fname(index) or b"").decode(),
            result.ftype(index),
            result.fmod(index),
            result.ftable(index),
            result.ftablecol(index),
        )
        for index in range(result.nfields)
    ]


def origin(connection: Connection, text: str, column: str) -> tuple[int, int] | None:
    """Relation and number of the column that a query shows under this name; None if it is an expression."""
    shown = (one for one in prepare(connection, text) if one.name == column and one.number)
    return next(((one.table_oid, one.number) for one in shown), None)


class CopyOut:
    """Rows of COPY … TO STDOUT by the extended protocol, in which the server refuses a second statement.

    `skip` bytes precede the first row; a message of at most `shortest` bytes is not a row.
    """

    def __init__(self, connection: Connection, statement: str, *, skip: int, shortest: int) -> None:
        self._connection = connection
        self._skip = skip
        self._shortest = shortest
        self._next: memoryview | None = None  # peeked at, not taken yet
        self._ended = False
        connection.pgconn.send_query_params(statement.encode(), None)
        _flush(connection)
        raise_failed(_next_result(connection), wanted=ExecStatus.COPY_OUT)

    def peek(self) -> memoryview | None:
        """The next row, without taking it; None at the end."""
        if self._next is None and not self._ended:
            self._next = self._receive()
            if self._next is not None and self._skip:
                self._next, self._skip = self._next[self._skip :], 0
        return self._next

    def take(self) -> memoryview:
        """The row that was peeked at."""
        row, self._next = self._next, None
        return row if row is not None else memoryview(b"")

    def take_some(self, size: int, max_bytes: int) -> tuple[bytearray, int, int]:
        """At most `size` rows, cut after `max_bytes`; their data, their number, and the offset of the last one."""
        data = bytearray(self.take())
        count, width = 1, len(data)
        get_copy_data, shortest = self._connection.pgconn.get_copy_data, self._shortest
        # hot loop: the only Python code that runs per row
        while count < size and len(data) < max_bytes:
            length, row = get_copy_data(1)
            if shortest < length < max_bytes:
                data += row
                count += 1
                width = length
            elif length == 0:
                self._wait()
            else:
                if length > shortest:
                    self._next = row  # larger than a batch may be
                elif length < 0:
                    self._end()
                break
        return data, count, len(data) - width

    def _receive(self) -> memoryview | None:
        while True:
            # non-blocking, because the blocking call would hold the interpreter lock and stop the heartbeat
            length, row = self._connection.pgconn.get_copy_data(1)
            if length > self._shortest + self._skip:
                return row
            if length < 0:
                return self._end()
            if length == 0:
                self._wait()

    def _wait(self) -> None:
        _wait_readable(self._connection)
        self._connection.pgconn.consume_input()

    def _end(self) -> None:
        self._ended = True
        while (result := _next_result(self._connection)) is not None:
            raise_failed(result)


def answer(connection: Connection) -> Any:
    """The single result of the last request; non-blocking, because a blocking call would hold the interpreter lock."""
    _flush(connection)
    answer = _next_result(connection)
    while _next_result(connection) is not None:
        pass
    return answer


def _end_pipeline(connection: Connection) -> list[Any]:
    """The results of all requests of a pipeline; raises the error of the first that failed."""
    connection.pgconn.pipeline_sync()
    _flush(connection)
    results: list[Any] = []
    while not connection.closed:
        result = _next_result(connection)
        if result is not None and result.status == ExecStatus.PIPELINE_SYNC:
            connection.pgconn.exit_pipeline_mode()
            break
        results += [] if result is None else [result]
    for result in results:
        raise_failed(result)
    return results


def _flush(connection: Connection) -> None:
    while connection.pgconn.flush():
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN | select.POLLOUT)
        poll.poll(1000)
        connection.pgconn.consume_input()


def _next_result(connection: Connection) -> Any:
    pgconn = connection.pgconn
    while pgconn.is_busy():
        _wait_readable(connection)
        pgconn.consume_input()
    return pgconn.get_result()


def _wait_readable(connection: Connection) -> None:
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    poll.poll(1000)


def raise_failed(result: Any, wanted: ExecStatus | None = None) -> None:
    accepted = {ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK} if wanted is None else {wanted}
    if result is not None and result.status not in accepted:
        raise psycopg.errors.error_from_result(result)
