"""Failpoints: armed by text, in tests only."""

import re
from collections.abc import Generator
from pathlib import Path
from threading import Thread

import pytest

from tests.helpers.waiting import wait_until
from vitrine import failpoints, settings
from vitrine.errors import ConfigError, TransientError

SOURCES = Path(failpoints.__file__).parent


@pytest.fixture(autouse=True)
def disarmed() -> Generator[None]:
    yield
    failpoints.install("")


def test_a_point_acts_when_it_is_reached_for_the_given_time() -> None:
    failpoints.install("after_read=raise@2")
    failpoints.reach("after_read")
    with pytest.raises(TransientError, match="failpoint after_read"):
        failpoints.reach("after_read")
    failpoints.reach("after_read")


def test_a_point_without_a_number_acts_every_time() -> None:
    failpoints.install("after_read=raise, heartbeat=raise")
    for name in ("after_read", "heartbeat", "after_read"):
        with pytest.raises(TransientError):
            failpoints.reach(name)


def test_a_waiting_point_continues_when_its_file_is_removed(tmp_path: Path) -> None:
    file = tmp_path / "held"
    failpoints.install(f"before_commit=wait:{file}")
    thread = Thread(target=failpoints.reach, args=("before_commit",))
    thread.start()
    wait_until(file.exists)
    assert thread.is_alive()
    file.unlink()
    thread.join(5)
    assert not thread.is_alive()


@pytest.mark.parametrize("text", ["nowhere=kill", "after_read", "after_read=explode", "after_read=kill@x"])
def test_a_text_that_is_no_failpoint_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        failpoints.install(text)


def test_failpoints_are_refused_outside_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRINE_FAILPOINTS", "after_read=kill")
    with pytest.raises(ConfigError, match="refused outside tests"):
        settings.load()
    monkeypatch.setenv("VITRINE_TESTING", "1")
    assert settings.load().failpoints == "after_read=kill"


def test_every_point_is_reached_somewhere_in_the_code() -> None:
    code = "".join(path.read_text("utf-8") for path in SOURCES.rglob("*.py"))
    reached = {
        name
        for call in re.findall(r"(?<![.\w])reach\((.+)\)$", code, re.MULTILINE)
        for name in re.findall(r'"(\w+)"', call)
    }
    assert reached == failpoints.NAMES
