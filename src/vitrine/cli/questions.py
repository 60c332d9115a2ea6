"""Questions before something is deleted."""

import sys

import typer

from vitrine.cli import process


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is removed; ends the process unless the user agrees, or gave --yes.

    Without a terminal nothing is asked: an answer that a script pipes in was written for another question.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        process.stop(f"nothing was changed: there is no terminal to ask “{question}”; give --yes to agree")
    try:
        agreed = typer.confirm(question)
    except typer.Abort:
        agreed = False
    if not agreed:
        process.stop("nothing was changed")
