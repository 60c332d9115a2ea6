"""A view that PostgreSQL plans for many seconds, and the sessions that do so."""

import os
import signal
from collections.abc import Collection, Generator
from contextlib import contextmanager

from vitrine.postgres import Connection, raw

BOMB = "content.bomb"
PRODUCTS = 250
"""Each takes the planner about 40 ms; together more than any promise about the end of a run."""


def create_bomb(connection: Connection) -> None:
    """The planner computes these constants in little memory."""
    product = "length((repeat('9', 65000)::numeric * repeat('{}', 65000)::numeric)::text)"
    products = " + ".join(product.format(number % 8 + 1) for number in range(PRODUCTS))
    connection.execute(raw(f"CREATE VIEW {BOMB} AS SELECT id, {products} AS n FROM content.film_work"))


def planning(connection: Connection) -> set[int]:
    """Numbers of the sessions that plan the bomb now."""
    rows = connection.execute(
        "SELECT pid FROM pg_stat_activity"
        " WHERE datname = current_database() AND state = 'active' AND query LIKE 'EXPLAIN %bomb%'"
    ).fetchall()
    return {row["pid"] for row in rows}


@contextmanager
def silent(sessions: Collection[int]) -> Generator[None]:
    """The server processes of these sessions answer nothing meanwhile: neither a cancel nor a terminate."""
    for session in sessions:
        os.kill(session, signal.SIGSTOP)
    try:
        yield
    finally:
        for session in sessions:
            os.kill(session, signal.SIGCONT)
