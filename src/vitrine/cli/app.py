"""The commands and their help. They import what they need inside their functions, so that each starts quickly."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from vitrine.cli import (
    access,
    building,
    checks,
    completion,
    control,
    demo,
    devserver,
    discover,
    doctor,
    exit_codes,
    files,
    inspection,
    listing,
    planning,
    project,
    reconciliation,
    removal,
    rollback,
    running,
    service,
    tracing,
)

GLOBAL_OPTIONS = ("--api", "--token-file", "--env-file")


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


app = typer.Typer(
    cls=_Commands,
    help="Builds analytical marts from SQL queries and registered transforms, and keeps them up to date.",
    epilog=exit_codes.help_text(),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
)


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


@app.callback()
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


for group in (
    (demo.demo, demo.up, demo.sample, devserver.devserver),
    (project.init, discover.discover, discover.transforms),
    (service.migrate, service.api, service.runner, doctor.doctor),
    (listing.list_all, inspection.show, inspection.status, inspection.runs, inspection.logs, inspection.request),
    (running.run, control.resume, control.pause, control.enable, control.disable, control.reload, rollback.rollback),
    (checks.validate, checks.preview, planning.plan),
    (reconciliation.reconcile, reconciliation.rejects, tracing.trace),
    (removal.reset, removal.delete),
    (files.apply, files.export, files.schema),
    (access.audit, completion.completion),
):
    for command in group:
        app.command(name="list" if command is listing.list_all else None)(command)
app.add_typer(access.token, name="token")
