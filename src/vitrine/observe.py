"""Log lines: a sentence for people, a machine word and the ids for machines."""

import logging
import re
import sys

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PASSWORD = re.compile(r"(?<=://)[^@/\s]+@")


class LineFormatter(logging.Formatter):
    """Time, level, sentence, then the extra fields as key=value; account and password of a URL never show."""

    def format(self, record: logging.LogRecord) -> str:
        extras = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        fields = "".join(f" {name}={value}" for name, value in extras.items())
        return _PASSWORD.sub("", super().format(record) + fields)


def configure_logging(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S"))
    root = logging.getLogger("vitrine")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
