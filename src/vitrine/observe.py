"""Log lines: a sentence for people, a machine word and the ids for machines; never a secret, never a row."""

import logging
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, Literal, TextIO

from vitrine.errors import VitrineError

if TYPE_CHECKING:
    from structlog.typing import Processor

LogFormat = Literal["auto", "json", "text"]
Event = MutableMapping[str, Any]

FIRST = ("timestamp", "level", "event", "action", "pipeline", "pipeline_id", "run_id")
"""The order in which the fields of a line begin; the others follow as they were given."""

_ACCOUNT = re.compile(r"(?<=://)[^/\s\"']*@")
_PASSWORD = re.compile(r"(?i)\b(password|passwd|pwd)(=|%3D)[^\s&\"']+")
_SHORTEST_SECRET = 8  # a shorter one is likely to be a part of innocent words


def configure_logging(
    level: str, form: LogFormat = "auto", *, secrets: Iterable[str] = (), stream: TextIO | None = None
) -> None:
    """Lines of JSON where no terminal reads along, unless `form` says otherwise. `secrets` are blotted out."""
    output = stream or sys.stderr
    as_text = form == "text" or (form == "auto" and output.isatty())
    handler = logging.StreamHandler(output)
    handler.setFormatter(_formatter(as_text=as_text, colours=output.isatty(), secrets=secrets))
    # the libraries' warnings come out in the same way, and as clean
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("vitrine").setLevel(level.upper())


def _formatter(*, as_text: bool, colours: bool, secrets: Iterable[str]) -> logging.Formatter:
    # loaded here, because most commands write no log
    import structlog

    renderer: Processor
    if as_text:
        renderer = structlog.dev.ConsoleRenderer(colors=colours, sort_keys=False, pad_event_to=0)
        stamp = structlog.processors.TimeStamper("%H:%M:%S", utc=False)
    else:
        renderer = structlog.processors.JSONRenderer(ensure_ascii=False)
        stamp = structlog.processors.TimeStamper("iso", utc=True)
    blot = _Blot(secrets)

    class Formatter(structlog.stdlib.ProcessorFormatter):
        def format(self, record: logging.LogRecord) -> str:
            # the last step of all, so that nothing comes after it
            return blot(super().format(record))

    before: list[Processor] = [structlog.stdlib.ExtraAdder(), structlog.stdlib.add_log_level, stamp, _trace]
    return Formatter(
        foreign_pre_chain=before,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _in_order, renderer],
    )


class _Blot:
    """Takes accounts and passwords out of a line: those in URLs, those after `password=`, and those it was told."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = sorted({one for one in secrets if len(one) >= _SHORTEST_SECRET}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def __call__(self, line: str) -> str:
        without = _PASSWORD.sub(r"\1\2***", _ACCOUNT.sub("", line))
        return self._known.sub("***", without) if self._known else without


def _in_order(logger: Any, method: str, event: Event) -> Event:
    given = dict(event)
    return {name: given.pop(name) for name in FIRST if name in given} | given


def _trace(logger: Any, method: str, event: Event) -> Event:
    """Where an exception came from, and of what kind; its own text may quote rows, unless it is one of ours."""
    raised = event.pop("exc_info", None)
    if raised and raised[1] is not None:
        event["exception"] = "\n".join(_places(raised[1]))
    return event


def _places(raised: BaseException) -> Iterator[str]:
    cause = raised.__cause__ or (None if raised.__suppress_context__ else raised.__context__)
    if cause is not None:
        yield from _places(cause)
    for frame in traceback.extract_tb(raised.__traceback__):
        yield f"{frame.filename}:{frame.lineno} in {frame.name}"
    state = getattr(raised, "sqlstate", None)
    text = f": {raised}" if isinstance(raised, VitrineError) else f" ({state})" if state else ""
    yield f"{type(raised).__name__}{text}"
