"""Tables and schemas that are missing for seconds, because a deployment renames them."""

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest

from tests.helpers.events import create_events, create_filled, create_target, events_are_right, fill_events
from tests.helpers.running import run, succeed
from vitrine.core.status import Status
from vitrine.definition.pipeline import Pipeline
from vitrine.errors import VitrineError
from vitrine.postgres import Connection
from vitrine.runner.run import log
from vitrine.settings import Settings
from vitrine.store import pipelines

AT_ONCE = (0.0, 0.0, 0.0)


class _OnRetry(logging.Handler):
    """Calls the action after the given number of logged retries."""

    def __init__(self, number: int, action: Callable[[], object]) -> None:
        super().__init__()
        self.seen: list[str] = []
        self._number = number
        self._action = action

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "action", None) == "retry":
            self.seen.append(record.getMessage())
            if len(self.seen) == self._number:
                self._action()


@contextmanager
def after_retries(number: int, action: Callable[[], object]) -> Generator[list[str]]:
    """The messages of retries; once there are so many, the action is called."""
    handler = _OnRetry(number, action)
    log.addHandler(handler)
    try:
        yield handler.seen
    finally:
        log.removeHandler(handler)


def loaded(connection: Connection, settings: Settings, mode: str) -> Pipeline:
    """A pipeline that has run once, and a change that it has not read yet."""
    events = create_filled(connection, settings, mode, 30, batch_size=10)
    succeed(connection, settings, events)
    connection.execute("UPDATE ugc.events SET note = 'changed', modified = now() WHERE id = 2")
    return events


MOVES = {
    "source table": (b"ALTER TABLE ugc.events RENAME TO moved", b"ALTER TABLE ugc.moved RENAME TO events"),
    "source schema": (b"ALTER SCHEMA ugc RENAME TO moved", b"ALTER SCHEMA moved RENAME TO ugc"),
    "target": (b"ALTER TABLE analytics.events RENAME TO moved", b"ALTER TABLE analytics.moved RENAME TO events"),
    "target schema": (b"ALTER SCHEMA analytics RENAME TO moved", b"ALTER SCHEMA moved RENAME TO analytics"),
}


@pytest.mark.promise("J32")
@pytest.mark.parametrize("retries", [1, 3])
@pytest.mark.parametrize("what", MOVES)
def test_a_relation_that_is_missing_for_seconds_delays_a_run_but_does_not_fail_it(
    connection: Connection, settings: Settings, what: str, retries: int
) -> None:
    events = loaded(connection, settings, "incremental")
    away, back = MOVES[what]
    connection.execute(away)
    with after_retries(retries, lambda: connection.execute(back)) as seen:
        succeed(connection, settings, events, waits=AT_ONCE)
    assert len(seen) == retries
    assert events_are_right(connection)


@pytest.mark.promise("J32")
def test_a_missing_target_whose_key_only_its_catalog_knows_is_waited_for_too(
    connection: Connection, settings: Settings
) -> None:
    fill_events(connection, 30)
    create_target(connection)
    events = create_events(connection, settings, "incremental", key_columns=[])
    succeed(connection, settings, events)
    connection.execute("UPDATE ugc.events SET note = 'changed', modified = now() WHERE id = 2")
    away, back = MOVES["target"]
    connection.execute(away)
    with after_retries(1, lambda: connection.execute(back)):
        succeed(connection, settings, events, waits=AT_ONCE)
    assert events_are_right(connection)


@pytest.mark.promise("J32")
@pytest.mark.parametrize(
    ("what", "mode", "code", "name"),
    [
        ("source table", "full", "CONFIG", "ugc.events"),
        ("source table", "incremental", "CONFIG", "ugc.events"),
        ("target", "incremental", "TARGET_SCHEMA", "analytics.events"),
        ("target schema", "full", "TARGET_SCHEMA", "analytics"),
    ],
)
def test_a_relation_that_stays_missing_fails_the_run_after_three_more_attempts(
    connection: Connection, settings: Settings, what: str, mode: str, code: str, name: str
) -> None:
    events = loaded(connection, settings, mode)
    away, back = MOVES[what]
    connection.execute(away)
    with after_retries(0, lambda: None) as seen:
        ended = run(connection, settings, events, waits=AT_ONCE, retry=True)
    assert isinstance(ended.error, VitrineError)
    assert (ended.error.code, len(seen)) == (code, 3)
    assert name in str(ended.error)
    assert pipelines.get(connection, events.id).status is Status.FAILED
    connection.execute(back)
    succeed(connection, settings, events)
    assert events_are_right(connection)
