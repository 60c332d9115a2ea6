"""Log lines: a sentence for people, an action word and ids for programs; no secrets and no row values."""

import logging
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, Literal, TextIO

from vitrine import text
from vitrine.errors import VitrineError
from vitrine.text import printable, printable_json

if TYPE_CHECKING:
    from structlog.typing import Processor

LogFormat = Literal["auto", "json", "text"]
Event = MutableMapping[str, Any]

OURS = "vitrine"
"""The logger above all of ours."""

FIRST = ("timestamp", "level", "event", "action", "pipeline", "pipeline_id", "run_id")
"""The first fields of a line, in this order; the others follow in the order of the call."""

_ACCOUNT = re.compile(r"(?<=://)[^/\s\"']*@")
_PASSWORD = re.compile(r"(?i)\b(password|passwd|pwd)(=|%3D)[^\s&\"']+")
_SHORTEST_SECRET = 8  # shorter secrets often occur in ordinary words


def configure_logging(
    level: str, log_format: LogFormat = "auto", *, secrets: Iterable[str] = (), stream: TextIO | None = None
) -> None:
    """Write text to a terminal and JSON to anything else, unless `log_format` decides; `secrets` are redacted."""
    output = stream or sys.stderr
    as_text = log_format == "text" or (log_format == "auto" and output.isatty())
    handler = logging.StreamHandler(output)
    handler.setFormatter(_formatter(as_text=as_text, colours=output.isatty(), secrets=secrets))
    lowest = logging.getLevelNamesMapping()[level.upper()]
    handler.addFilter(lambda record: record.levelno >= lowest or not _is_ours(record))
    # on the root logger, so that warnings of libraries have the same format and are redacted too
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    # the last lines of a run are kept in any case
    logging.getLogger(OURS).setLevel(min(lowest, logging.INFO))


def configure_foreground(*, silent: str) -> None:
    """Write only the sentences of warnings, to stderr; lines of the logger `silent` are only kept with their runs."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.addFilter(lambda record: record.name != silent)
    logging.getLogger().handlers[:] = [handler]
    logging.getLogger(OURS).setLevel(logging.INFO)


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] == OURS


def _formatter(*, as_text: bool, colours: bool, secrets: Iterable[str]) -> logging.Formatter:
    # imported here, because most commands write no log
    import structlog

    renderer: Processor
    if as_text:
        renderer = structlog.dev.ConsoleRenderer(colors=colours, sort_keys=False, pad_event_to=0)
        stamp = structlog.processors.TimeStamper("%H:%M:%S", utc=False)
    else:
        renderer = structlog.processors.JSONRenderer(ensure_ascii=False)
        stamp = structlog.processors.TimeStamper("iso", utc=True)
    redact = Redactor(secrets)

    class Formatter(structlog.stdlib.ProcessorFormatter):
        def format(self, record: logging.LogRecord) -> str:
            # after every other step, so that no step can add a secret
            line = redact(super().format(record))
            return line if as_text else printable_json(line)

    before: list[Processor] = [structlog.stdlib.ExtraAdder(), structlog.stdlib.add_log_level, stamp, _add_traceback]
    if as_text:
        before.append(_make_printable)
    return Formatter(
        foreign_pre_chain=before,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _in_order, renderer],
    )


class Redactor:
    """Removes accounts in URLs, values after `password=`, access tokens, and the given secrets from a line."""

    def __init__(self, secrets: Iterable[str]) -> None:
        long_enough = sorted({one for one in secrets if len(one) >= _SHORTEST_SECRET}, key=len, reverse=True)
        self._secrets = re.compile("|".join(map(re.escape, long_enough))) if long_enough else None

    def __call__(self, line: str) -> str:
        # guarantee: H3
        redacted = text.redact(_PASSWORD.sub(r"\1\2***", _ACCOUNT.sub("", line)))
        return self._secrets.sub("***", redacted) if self._secrets else redacted


def _make_printable(logger: Any, method: str, event: Event) -> Event:
    """Names and errors must not control the terminal; the renderer adds its own colours later."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = printable(value, lines=name == "exception")
    return event


def _in_order(logger: Any, method: str, event: Event) -> Event:
    fields = dict(event)
    return {name: fields.pop(name) for name in FIRST if name in fields} | fields


def _add_traceback(logger: Any, method: str, event: Event) -> Event:
    """The frames and types of an exception; without its text, which may quote rows, unless it is a VitrineError."""
    raised = event.pop("exc_info", None)
    if raised and raised[1] is not None:
        event["exception"] = "\n".join(describe(raised[1]))
    return event


def describe(raised: BaseException) -> Iterator[str]:
    """Frames and type of an exception and of its causes; the text only of a VitrineError, which quotes no row."""
    cause = raised.__cause__ or (None if raised.__suppress_context__ else raised.__context__)
    if cause is not None:
        yield from describe(cause)
    for frame in traceback.extract_tb(raised.__traceback__):
        yield f"{frame.filename}:{frame.lineno} in {frame.name}"
    sqlstate = getattr(raised, "sqlstate", None)
    text = f": {raised}" if isinstance(raised, VitrineError) else f" ({sqlstate})" if sqlstate else ""
    yield f"{type(raised).__name__}{text}"
