"""Writer sessions that insert, update, wait, roll back and commit late."""

import random
import threading
from contextlib import suppress
from typing import LiteralString

import psycopg

_INSIDE: tuple[LiteralString, ...] = (
    "INSERT INTO ugc.chaos_changes (note, modified) VALUES (%(note)s, now())",
    "INSERT INTO ugc.chaos_changes (note, modified) SELECT %(note)s, now() FROM generate_series(1, 30)",
    "UPDATE ugc.chaos_changes SET note = %(note)s, modified = now() WHERE id = %(id)s",
    "UPDATE ugc.chaos_changes SET note = %(note)s, modified = now() WHERE id %% 50 = %(id)s %% 50 AND id < 500",
    "INSERT INTO ugc.chaos_log (note) VALUES (%(note)s)",
    "INSERT INTO ugc.chaos_log (note) SELECT %(note)s FROM generate_series(1, 30)",
    "INSERT INTO ugc.chaos_shelf (note) VALUES (%(note)s)",
    "UPDATE ugc.chaos_shelf SET note = %(note)s WHERE id = %(id)s",
    "DELETE FROM ugc.chaos_shelf WHERE id = %(id)s",
)


class Writer(threading.Thread):
    """Runs transactions until stopped; reconnects when its session is lost."""

    def __init__(self, url: str, seed: int, stop: threading.Event) -> None:
        super().__init__(name=f"writer-{seed}", daemon=True)
        self._url = url
        self._random = random.Random(seed)
        self._stop_requested = stop
        self.commits = 0

    def run(self) -> None:
        while not self._stop_requested.is_set():
            # the server may be down or crash at any time
            with suppress(psycopg.Error, psycopg.Rollback), psycopg.connect(self._url, autocommit=True) as connection:
                while not self._stop_requested.is_set():
                    self._transact(connection)
            self._stop_requested.wait(0.1)

    def _transact(self, connection: psycopg.Connection) -> None:
        with suppress(psycopg.errors.DeadlockDetected):
            with connection.transaction():
                for _ in range(self._random.randint(1, 4)):
                    self._change(connection)
                    self._wait()
                if self._random.random() < 0.1:
                    raise psycopg.Rollback
            self.commits += 1

    def _change(self, connection: psycopg.Connection) -> None:
        arguments = {"note": f"{self._random.getrandbits(40):x}", "id": self._random.randint(1, 2500)}
        with connection.transaction() as savepoint:
            connection.execute(self._random.choice(_INSIDE), arguments)
            if self._random.random() < 0.2:
                raise psycopg.Rollback(savepoint)

    def _wait(self) -> None:
        """Mostly short; sometimes long enough for other writers to commit in between."""
        self._stop_requested.wait(self._random.choice((0.0, 0.0, 0.0, 0.01, 0.02, 0.05, 0.3, 1.0)))
