"""The commands and their help. They import what they need inside their functions, so that each starts quickly."""

import typer

from vitrine.cli import demo, devserver, files, pipelines, rollback, service, transforms

app = typer.Typer(
    help="Builds analytical marts from SQL queries and registered transforms, and keeps them up to date.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for command in (
    demo.demo,
    demo.up,
    demo.sample,
    devserver.devserver,
    service.migrate,
    service.api,
    service.runner,
    service.run,
    rollback.rollback,
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
    files.schema,
):
    app.command(name="list" if command is pipelines.list_all else None)(command)
