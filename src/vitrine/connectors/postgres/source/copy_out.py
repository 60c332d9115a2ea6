"""Prepared statements and COPY output by the extended query protocol, with the driver's non-blocking calls."""

import fcntl
import select
import sys
import termios
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.pq import ExecStatus

from vitrine.connectors.postgres.source.session import SourceSession


@dataclass(frozen=True)
class Described:
    """A column of a query as the server describes it."""

    name: str
    type_oid: int
    modifier: int
    # the column of a table that it shows; 0: it is an expression
    table_oid: int = field(default=0, compare=False)
    number: int = field(default=0, compare=False)


def prepare(session: SourceSession, text: str, then: Sequence[str] = ()) -> list[Described]:
    """The columns of a query, without executing it; in one round trip, with these statements after it."""
    pgconn = session.pgconn
    with session.limited():
        pgconn.enter_pipeline_mode()
        pgconn.send_prepare(b"", text.encode())
        pgconn.send_describe_prepared(b"")
        for statement in then:
            pgconn.send_query_params(statement.encode(), None)
        _, result, *_ = _end_pipeline(session)
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


def origin(session: SourceSession, text: str, column: str) -> tuple[int, int] | None:
    """Relation and number of the column that a query shows under this name; None if it is an expression."""
    shown = (one for one in prepare(session, text) if one.name == column and one.number)
    return next(((one.table_oid, one.number) for one in shown), None)


class CopyOut:
    """Rows of COPY … TO STDOUT by the extended protocol, in which the server refuses a second statement.

    `skip` bytes precede the first row; a message of at most `shortest` bytes is not a row. The rows end before one of
    more than `max_row` bytes, which is not received to its end if it arrives slowly.
    """

    def __init__(self, session: SourceSession, statement: str, *, skip: int, shortest: int, max_row: int) -> None:
        self._session = session
        self._skip = skip
        self._shortest = shortest
        self._max_row = max_row
        self.is_too_large = False  # the next row: the stream cannot be continued
        self._incomplete = 0  # bytes that have arrived of a row that is not complete yet
        self._incomplete_after: int | None = None  # number of the rows of the current call before it
        self._next: memoryview | None = None  # peeked at, not taken yet
        self._ended = False
        with session.limited():
            session.pgconn.send_query_params(statement.encode(), None)
            _flush(session)
            raise_failed(_next_result(session), wanted=ExecStatus.COPY_OUT)
            self.peek()

    def peek(self) -> memoryview | None:
        """The next row, without taking it; None at the end, and if it is too large."""
        if self._next is None and not self._ended and not self.is_too_large:
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
        get_copy_data, shortest = self._session.pgconn.get_copy_data, self._shortest
        longest = min(max_bytes, self._max_row + 1)
        self._incomplete_after = None
        # hot loop: the only Python code that runs per row
        while count < size and len(data) < max_bytes:
            length, row = get_copy_data(1)
            if shortest < length < longest:
                data += row
                count += 1
                width = length
            elif length == 0:
                if not self._wait(count):
                    break
            else:
                if length > shortest:
                    self._next = self._accept(row)  # larger than a batch may be
                elif length < 0:
                    self._end()
                break
        return data, count, len(data) - width

    def _receive(self) -> memoryview | None:
        self._incomplete_after = None
        while not self.is_too_large:
            # non-blocking, because the blocking call would hold the interpreter lock and stop the heartbeat
            length, row = self._session.pgconn.get_copy_data(1)
            if length > self._shortest + self._skip:
                return self._accept(row)
            if length < 0:
                return self._end()
            if length == 0:
                self._wait(0)
        return None

    def _accept(self, row: memoryview) -> memoryview | None:
        self.is_too_large = len(row) > self._max_row
        return None if self.is_too_large else row

    def _wait(self, rows: int) -> bool:
        """Receive more; False once the row after these has more bytes than a row may have.

        The driver reports a row only when it is complete, so what arrives in the meantime is counted here.
        """
        _wait_readable(self._session)
        if rows != self._incomplete_after:
            self._incomplete_after, self._incomplete = rows, 0
        self._incomplete += _arrived(self._session.fileno())
        self.is_too_large = self._incomplete > self._max_row
        if not self.is_too_large:
            self._session.pgconn.consume_input()
        return not self.is_too_large

    def _end(self) -> None:
        self._ended = True
        while (result := _next_result(self._session)) is not None:
            raise_failed(result)


def answer(session: SourceSession) -> Any:
    """The single result of the last request; non-blocking, because a blocking call would hold the interpreter lock."""
    with session.limited():
        _flush(session)
        answer = _next_result(session)
        while _next_result(session) is not None:
            pass
    return answer


def _end_pipeline(session: SourceSession) -> list[Any]:
    """The results of all requests of a pipeline; raises the error of the first that failed."""
    session.pgconn.pipeline_sync()
    _flush(session)
    results: list[Any] = []
    while not session.closed:
        result = _next_result(session)
        if result is not None and result.status == ExecStatus.PIPELINE_SYNC:
            session.pgconn.exit_pipeline_mode()
            break
        results += [] if result is None else [result]
    for result in results:
        raise_failed(result)
    return results


def _flush(session: SourceSession) -> None:
    while session.pgconn.flush():
        poll = select.poll()
        poll.register(session.fileno(), select.POLLIN | select.POLLOUT)
        poll.poll(1000)
        session.pgconn.consume_input()


def _next_result(session: SourceSession) -> Any:
    pgconn = session.pgconn
    while pgconn.is_busy():
        _wait_readable(session)
        pgconn.consume_input()
    return pgconn.get_result()


def _wait_readable(session: SourceSession) -> None:
    poll = select.poll()
    poll.register(session.fileno(), select.POLLIN)
    poll.poll(1000)


def _arrived(socket: int) -> int:
    """Bytes that the driver will receive next."""
    waiting = fcntl.ioctl(socket, termios.FIONREAD, bytes(4))
    return int.from_bytes(waiting, sys.byteorder)


def raise_failed(result: Any, wanted: ExecStatus | None = None) -> None:
    accepted = {ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK} if wanted is None else {wanted}
    if result is not None and result.status not in accepted:
        raise psycopg.errors.error_from_result(result)
