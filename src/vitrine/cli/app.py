"""The commands and their help. They import what they need inside their functions, so that each starts quickly."""

from collections.abc import Collection, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from vitrine.cli import building, exit_codes

GLOBAL_OPTIONS = ("--api", "--token-file", "--env-file")
HELP_OPTIONS = ("--help", "-h")

COMMANDS = {
    "demo": "demo:demo",
    "up": "demo:up",
    "sample": "demo:sample",
    "devserver": "demo:devserver",
    "init": "files:init",
    "discover": "checks:discover",
    "transforms": "checks:transforms",
    "migrate": "service:migrate",
    "api": "service:api",
    "runner": "service:runner",
    "doctor": "service:doctor",
    "list": "inspection:list_all",
    "show": "inspection:show",
    "status": "inspection:status",
    "runs": "inspection:runs",
    "logs": "inspection:logs",
    "request": "inspection:request",
    "run": "running:run",
    "resume": "control:resume",
    "pause": "control:pause",
    "enable": "control:enable",
    "disable": "control:disable",
    "reload": "control:reload",
    "rollback": "control:rollback",
    "validate": "checks:validate",
    "preview": "checks:preview",
    "plan": "files:plan",
    "reconcile": "reconciliation:reconcile",
    "rejects": "reconciliation:rejects",
    "trace": "reconciliation:trace",
    "reset": "control:reset",
    "delete": "control:delete",
    "apply": "files:apply",
    "export": "files:export",
    "schema": "files:schema",
    "audit": "access:audit",
    "completion": "arguments:completion",
    "token": "access:token",
}
"""Each command with its module and its function, in the order of the help."""


class _Commands(TyperGroup):
    """Accepts the global options behind the command as well: `vitrine list --api URL`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, hoisted(args))


def hoisted(arguments: list[str]) -> list[str]:
    """The arguments with the global options, and their values, first."""
    first: list[str] = []
    others: list[str] = []
    given = iter(arguments)
    for argument in given:
        if argument == "--":
            others += [argument, *given]
        elif argument in GLOBAL_OPTIONS:
            first += [argument, *(value for value in [next(given, None)] if value is not None)]
        elif argument.startswith(tuple(f"{name}=" for name in GLOBAL_OPTIONS)):
            first.append(argument)
        else:
            others.append(argument)
    return [*first, *others]


def _show_version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib import metadata

    from vitrine.cli import output

    try:
        version = metadata.version("vitrine-etl")
    except metadata.PackageNotFoundError:  # a source tree on the path, not installed
        version = "unknown"
    output.show(f"vitrine {version}")
    raise typer.Exit


def options(
    api: Annotated[
        str | None,
        typer.Option(
            help="Work through the API at this address instead of the database; default: VITRINE_API_URL. The token is"
            " read from VITRINE_TOKEN or --token-file.",
            metavar="URL",
            show_default=False,
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token for the API.", metavar="FILE", show_default=False)
    ] = None,
    env_file: Annotated[
        Path | None,
        typer.Option(
            help="Read settings from this file instead of `.env` in the working folder.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    building.global_options.api = api
    building.global_options.token_file = token_file
    if env_file is not None:
        from vitrine import settings

        settings.choose_env_file(env_file)


def command_line(arguments: Sequence[str]) -> typer.Typer:
    """The command line with every command that the arguments can name."""
    found = typer.Typer(
        cls=_Commands,
        help="Builds analytical marts from SQL queries and registered transforms, and keeps them up to date.",
        epilog=exit_codes.help_text(),
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": list(HELP_OPTIONS), "max_content_width": 100},
    )
    found.callback()(options)
    for name in needed(arguments):
        module, _, function = COMMANDS[name].partition(":")
        command = getattr(import_module(f"vitrine.cli.{module}"), function)
        if isinstance(command, typer.Typer):
            found.add_typer(command, name=name)
        else:
            found.command(name=name)(command)
    return found


def needed(arguments: Sequence[str]) -> Collection[str]:
    """The commands that stand among the arguments; all of them for help, completion and mistakes.

    To import and describe all of them takes a tenth of a short command.
    """
    named = [name for name in COMMANDS if name in arguments]
    return COMMANDS if not named or not set(HELP_OPTIONS).isdisjoint(arguments) else named
