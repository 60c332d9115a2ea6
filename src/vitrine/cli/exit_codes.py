"""Exit codes of the commands: the only list of them."""

from typing import NamedTuple

DONE, FAILED, DIFFERENT, PAUSED, HELD, INTERRUPTED = 0, 1, 2, 3, 4, 130

WRONG_USE = DIFFERENT
"""The usual code of a command with wrong arguments."""


class ExitCode(NamedTuple):
    code: int
    meaning: str


TABLE = (
    ExitCode(DONE, "Done; `reconcile`, `trace`: source and target are equal; `doctor`: no error"),
    ExitCode(FAILED, "Failed or refused; the reason is one sentence on stderr. `export`: a pipeline was left out"),
    ExitCode(DIFFERENT, "`reconcile`, `trace`: source and target differ. Any command: wrong arguments"),
    ExitCode(PAUSED, "`run`, `rollback`, `request`: paused, interrupted or not finished in time; it continues later"),
    ExitCode(HELD, "`run`: another runner has the pipeline"),
    ExitCode(INTERRUPTED, "Ctrl-C; other signals end a command with 128 plus their number"),
)


def help_text() -> str:
    """For `--help`."""
    return "\n".join(["\b", "Exit codes:", *(f"{one.code:>5}  {one.meaning}" for one in TABLE)])


def worst(codes: set[int]) -> int:
    """Of several pipelines: the first of failed, held and paused that occurred."""
    return next((code for code in (FAILED, HELD, PAUSED) if code in codes), DONE)
