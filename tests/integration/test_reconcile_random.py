"""Random damage to a mart and to its source while writers go on: every damaged key is found, and no other."""

import os
import random
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest

from tests.helpers.events import create_events, create_target, events_are_right, fill_events
from tests.helpers.reconciling import Report, report
from tests.helpers.running import succeed
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection
from vitrine.settings import Settings

STEPS = int(os.environ.get("VITRINE_TEST_STEPS", "400"))
SEED = int(os.environ.get("VITRINE_TEST_SEED", "1"))
QUIET = max(4000, STEPS)
"""Rows that only the test changes, each at most once; writers use other keys."""
STEPS_BETWEEN = 20
PATIENT_LEASE = timedelta(seconds=30)
"""The writers leave little of a busy machine to heartbeats."""


class World:
    """Source, mart, and which keys must be found."""

    def __init__(self, connection: Connection, settings: Settings, pipeline: Pipeline, chance: random.Random) -> None:
        self.connection = connection
        self.settings = settings
        self.pipeline = pipeline
        self.chance = chance
        self.missing: set[int] = set()
        self.extra: set[int] = set()
        self.different: set[int] = set()
        # their rows have moved the cursor: whether the next run reads them depends on open transactions
        self.moved: set[int] = set()
        self.untouched = list(range(1, QUIET + 1))
        self.added = 0
        chance.shuffle(self.untouched)

    def step(self) -> None:
        actions: list[Callable[[], None]] = [
            self.change_target,
            self.delete_from_target,
            self.insert_into_target,
            self.change_source,
            self.delete_from_source,
            self.move_source,
            self.move_source,
        ]
        self.chance.choice(actions)()

    def change_target(self) -> None:
        key = self._take(self.different)
        self.connection.execute("UPDATE analytics.events SET note = 'by hand ' || note WHERE id = %s", [key])

    def delete_from_target(self) -> None:
        self.connection.execute("DELETE FROM analytics.events WHERE id = %s", [self._take(self.missing)])

    def insert_into_target(self) -> None:
        self.added += 1
        key = -self.added
        self.extra.add(key)
        modified = self.chance.choice([None, "2023-01-01", "infinity", "now"])
        self.connection.execute("INSERT INTO analytics.events VALUES (%s, 'extra', %s)", [key, modified])

    def change_source(self) -> None:
        key = self._take(self.different)
        self.connection.execute("UPDATE ugc.events SET note = 'at the source ' || note WHERE id = %s", [key])

    def delete_from_source(self) -> None:
        self.connection.execute("DELETE FROM ugc.events WHERE id = %s", [self._take(self.extra)])

    def move_source(self) -> None:
        key = self._take(self.moved)
        self.connection.execute(
            "UPDATE ugc.events SET note = note || '.', modified = clock_timestamp() WHERE id = %s", [key]
        )

    def _take(self, chosen: set[int]) -> int:
        key = self.untouched.pop()
        chosen.add(key)
        return key

    def compare(self) -> None:
        found = report(self.connection, self.settings, self.pipeline)
        self.check(found)

    def check(self, found: Report) -> None:
        for kind, expected in (("missing", self.missing), ("extra", self.extra), ("different", self.different)):
            named = {int(key) for key in found[kind]["keys"]}
            assert named == expected, (kind, "invented", named - expected, "not found", expected - named)

    def repair(self) -> None:
        found = report(self.connection, self.settings, self.pipeline, repair=True)
        assert found["equal"], found["sentence"]
        repaired = {kind: {int(key) for key in some["keys"]} for kind, some in found["repaired"].items()}
        assert repaired == {"missing": self.missing, "extra": self.extra, "different": self.different}
        self.missing.clear()
        self.extra.clear()
        self.different.clear()


@contextmanager
def writing(url: str) -> Generator[None]:
    """Two writers: one commits at once, the other holds its transactions open, so that rows appear late."""
    stop = threading.Event()
    writers = [
        threading.Thread(target=_write, args=(url, stop, first, slow)) for first, slow in ((0, False), (1, True))
    ]
    for writer in writers:
        writer.start()
    try:
        yield
    finally:
        stop.set()
        for writer in writers:
            writer.join()


def _write(url: str, stop: threading.Event, first: int, slow: bool) -> None:
    chance = random.Random(first)
    with psycopg.connect(url) as connection:
        number = 1_000_000 * (first + 1)
        while not stop.is_set():
            number += 1
            connection.execute("INSERT INTO ugc.events VALUES (%s, 'new', clock_timestamp())", [number])
            changed = 1_000_000 * (first + 1) + chance.randrange(1, number % 1_000_000 + 1)
            connection.execute(
                "UPDATE ugc.events SET note = note || '.', modified = clock_timestamp() WHERE id = %s", [changed]
            )
            stop.wait(0.1 if slow else 0.005)
            connection.commit()


@pytest.mark.promise("R1", "R2", "R5", "I11", "C13")
def test_every_damaged_key_is_found_none_is_invented_and_repair_makes_both_equal(
    connection: Connection, settings: Settings, database_url: str
) -> None:
    settings = settings.model_copy(update={"lease_ttl": PATIENT_LEASE})
    fill_events(connection, QUIET)
    create_target(connection)
    options = {"horizon_margin": "0s", "max_delete_ratio": 1.0}
    pipeline = create_events(connection, settings, "incremental", options=options, batch_size=5000)
    succeed(connection, settings, pipeline)
    chance = random.Random(SEED)
    world = World(connection, settings, pipeline, chance)
    with writing(database_url):
        for number in range(1, STEPS + 1):
            world.step()
            if number % STEPS_BETWEEN:
                continue
            if chance.random() < 0.3:
                succeed(connection, settings, pipeline)
            world.compare()
            if chance.random() < 0.5:
                world.repair()
        world.repair()
    succeed(connection, settings, pipeline)
    world.compare()
    assert events_are_right(connection)
