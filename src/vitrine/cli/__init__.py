"""The command `vitrine`: the only place that builds things and passes them on."""

import sys

import typer

from vitrine.cli import demo, files, pipelines, process, service, transforms
from vitrine.errors import VitrineError

app = typer.Typer(
    help="Builds analytical marts and keeps them up to date: SQL reads, registered transforms change, a mart results.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for command in (
    demo.demo,
    demo.up,
    demo.sample,
    service.migrate,
    service.api,
    service.runner,
    service.run,
    pipelines.reconcile,
    pipelines.list_all,
    pipelines.status,
    transforms.transforms,
    pipelines.pause,
    pipelines.reload,
    pipelines.validate,
    pipelines.rejects,
    files.apply,
    files.export,
):
    app.command(name="list" if command is pipelines.list_all else None)(command)


def main() -> None:
    """Run the command line; every known error is one sentence on stderr and exit code 1."""
    process.skip_collection_at_exit()
    try:
        app()
    except VitrineError as exc:
        process.stop(str(exc))
    except KeyboardInterrupt:
        sys.exit(process.INTERRUPTED)
