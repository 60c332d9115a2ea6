"""Log lines: their format, and what they never contain."""

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from vitrine import logs
from vitrine.errors import TransientError

log = logging.getLogger("vitrine.tests")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restore_loggers() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("vitrine")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def configured(form: logs.LogFormat = "auto", stream: io.StringIO | None = None, **options: Any) -> io.StringIO:
    output = stream or io.StringIO()
    logs.configure_logging("info", form, stream=output, **options)
    return output


def test_a_line_is_json_that_starts_with_the_sentence_the_action_and_the_ids() -> None:
    output = configured()
    log.info(
        "run ended, pipeline %s",
        "IDLE",
        extra={"rows_read": 7, "run_id": 3, "pipeline_id": "5f0c", "pipeline": "genres", "action": "run_ended"},
    )
    (line,) = lines(output)
    assert list(line) == ["timestamp", "level", "event", "action", "pipeline", "pipeline_id", "run_id", "rows_read"]
    assert (line["level"], line["event"], line["rows_read"]) == ("info", "run ended, pipeline IDLE", 7)
    timestamp = datetime.fromisoformat(line["timestamp"])
    assert timestamp.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - timestamp) < timedelta(minutes=1)


def test_a_line_below_the_level_is_not_written() -> None:
    output = configured()
    log.debug("batch written")
    assert lines(output) == []


def test_a_terminal_shows_text_and_anything_else_json_unless_the_format_is_set() -> None:
    shown: dict[tuple[str, bool], bool] = {}
    forms: tuple[logs.LogFormat, ...] = ("auto", "json", "text")
    for form in forms:
        for stream in (Terminal(), io.StringIO()):
            log_to = configured(form, stream)
            log.warning("lease lost", extra={"action": "lease_lost"})
            shown[form, stream.isatty()] = log_to.getvalue().startswith("{")
            assert "lease lost" in log_to.getvalue()
            assert "lease_lost" in log_to.getvalue()
    assert [key for key, is_json in shown.items() if is_json] == [("auto", False), ("json", True), ("json", False)]


@pytest.mark.promise("H3")
@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize(
    "text",
    [
        "cannot reach postgresql://vitrine:S3CR3T@db:5432/cinema",
        "cannot reach postgresql://vitrine:S3@CR3T@db/cinema",
        "host=db user=vitrine password=S3CR3T dbname=cinema",
        "postgresql://db/cinema?user=vitrine&password=S3CR3T&sslmode=require",
        "the server said: wrong key given-S3CR3T-given",
    ],
)
def test_a_password_never_shows(form: logs.LogFormat, text: str) -> None:
    output = configured(form, secrets=["given-S3CR3T-given", "it"])
    log.warning("waiting: %s", text, extra={"url": text})
    log.warning(text, exc_info=TransientError(text))
    shown = output.getvalue()
    assert "CR3T" not in shown
    assert "waiting" in shown  # `it` is too short to be redacted, even though it is a password
    assert "cinema" in shown or "server said" in shown


def test_warnings_of_libraries_have_the_same_format() -> None:
    output = configured()
    library = logging.getLogger("some.pool")
    library.info("connecting")
    library.warning("error connecting to %s", "postgresql://vitrine:S3CR3T@db/cinema")
    (line,) = lines(output)
    assert (line["level"], line["event"]) == ("warning", "error connecting to postgresql://db/cinema")


@pytest.mark.promise("H3")
def test_an_exception_is_logged_by_its_type_and_place_and_not_by_its_text() -> None:
    output = configured()
    try:
        try:
            int("S3CR3T of a row")
        except ValueError as exc:
            raise TransientError("source: the connection is lost") from exc
    except TransientError:
        log.exception("unexpected error", extra={"action": "unexpected_error"})
    (line,) = lines(output)
    assert "S3CR3T" not in output.getvalue()
    assert "ValueError\n" in line["exception"]
    assert line["exception"].endswith("TransientError: source: the connection is lost")
    assert f"{__file__}:" in line["exception"]


def test_commands_without_logs_and_metrics_import_no_library_for_them() -> None:
    code = (
        "import sys, vitrine.cli, vitrine.runner.worker;"
        " sys.stdout.write(','.join({'structlog', 'prometheus_client'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
