"""Checks command lines of documents and manifests without running them."""

from collections.abc import Sequence
from typing import Any

import typer

from vitrine.cli.app import command_line


def parse(arguments: Sequence[str]) -> str:
    """The name of the command in these arguments of `vitrine`; an exception if it or an option is unknown."""
    command: Any = typer.main.get_command(command_line(()))
    name, names, rest = "vitrine", list[str](), list(arguments)
    context: Any = None
    while True:
        context = command.make_context(name, rest, parent=context)
        if not hasattr(command, "resolve_command"):
            return " ".join(names)
        name, command, rest = command.resolve_command(context, [*_kept_back(context), *context.args])
        names.append(name)


def _kept_back(context: Any) -> list[str]:
    """The name of the subcommand, which some releases of the library keep apart from the other arguments."""
    return getattr(context, "_protected_args", [])


def unknown(words: Sequence[str]) -> str | None:
    """A command or an option in a line of a document that does not exist; arguments may be missing."""
    command = typer.main.get_command(command_line(()))
    options = set(_options(command))
    for word in words:
        if (found := getattr(command, "commands", {}).get(word)) is not None:
            command = found
            options |= set(_options(command))
        elif word.partition("=")[0] not in options if word.startswith("-") else _lacks(command, word):
            return word
    return None


def _lacks(command: Any, word: str) -> bool:
    """Whether the word stands where a command is expected, and there is none of that name."""
    return bool(getattr(command, "commands", None)) and word.islower() and word.isalpha()


def _options(command: Any) -> list[str]:
    return [name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)]
