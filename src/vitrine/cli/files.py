"""Commands for pipelines as YAML files: apply, export, schema."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrine.cli import building, differences, output, process
from vitrine.cli.arguments import Env

if TYPE_CHECKING:
    from vitrine.documents import Document
    from vitrine.model import Definition
    from vitrine.settings import Settings

WRONG_USE = 2


def apply(
    folder: Annotated[Path, typer.Argument(help="A YAML file, or a folder of them.", show_default=False)],
    state: Annotated[
        str | None, typer.Option(help="For a changed query with a checkpoint: keep or reset it.", metavar="keep|reset")
    ] = None,
    no_validate: Annotated[
        bool, typer.Option("--no-validate", help="Store the definitions without asking their sources and targets.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete pipelines that have no file in the folder; their marts stay.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --prune: do not ask.")] = False,
    env: Env = None,
) -> None:
    """Create, change and delete pipelines as the YAML files say: all of them, or none."""
    from vitrine import pipeline_files, revisions

    if state not in (None, "keep", "reset"):
        process.stop(f"--state is keep or reset, not '{state}'", WRONG_USE)
    if prune and folder.is_file():
        process.stop("--prune needs the folder with the files of all pipelines, not one file", WRONG_USE)
    settings = building.service_settings()
    reading = pipeline_files.read(folder, pipeline_files.read_variables(env) if env else None)
    documents, refused = reading.documents, list(reading.mistakes)
    if not no_validate:
        with building.connect_store(settings) as store:
            work = revisions.new_work(store, documents)
        refused += _validate(work, settings)
    with building.connect_store(settings) as store:
        others = revisions.list_others(store, documents) if folder.is_dir() else []
        delete = others if prune else []
        if dry_run or (delete and not yes):
            # the question comes after every refusal, and with everything that the answer decides
            planned = revisions.apply_all(
                store, settings, documents, state, refused=refused, delete=delete, dry_run=True
            )
            differences.show(planned)
        if dry_run:
            _end_dry_run([] if prune else others)
            return
    if delete and not yes:
        _ask(delete)
    with building.connect_store(settings) as store:
        applied = revisions.apply_all(store, settings, documents, state, refused=refused, delete=delete)
    if delete and not yes:
        output.show("applied")
    else:
        differences.show(applied)


def _end_dry_run(others: Sequence[str]) -> None:
    for name in others:
        output.show(f"{name}: has no file; --prune deletes it")
    output.show("nothing was changed: this was a dry run")


def _ask(delete: Sequence[str]) -> None:
    """End the process unless the user agrees."""
    question = f"Delete {len(delete)} pipeline(s) with state and history ({', '.join(delete)}), and apply the others?"
    try:
        agreed = typer.confirm(question)
    except typer.Abort:
        agreed = False
    if not agreed:
        process.stop("nothing was changed: --prune needs the answer y, or --yes")


def _validate(work: "Sequence[tuple[Document, Definition]]", settings: "Settings") -> list[str]:
    """Reasons against definitions from their sources and targets; shows their warnings."""
    from vitrine.engine import plan, validation
    from vitrine.errors import ConfigError

    refused: list[str] = []
    silent: set[str] = set()  # sources that did not respond: the wait is not repeated for every file
    for document, definition in work:
        if definition.source in silent:
            output.show(f"warning: {document.origin}: not validated: source '{definition.source}' did not respond")
            continue
        try:
            checked = plan.check(definition, settings)
        except ConfigError:
            continue  # reported when the files are applied
        try:
            findings = validation.preflight(checked)
        except ConfigError as exc:
            refused += [f"{reason}. To store it anyway, give --no-validate" for reason in document.mistakes(exc)]
            continue
        if any(finding.code == validation.NOT_VALIDATED for finding in findings):
            silent.add(definition.source)
        for warning in validation.warnings_of(findings):
            output.show(f"warning: {document.origin}: {warning}")
    return refused


def export(
    folder: Annotated[Path, typer.Argument(help="The folder to write the files to.", show_default=False)],
) -> None:
    """Write every pipeline as a YAML file that `apply` reads back, and the JSON Schema for editors."""
    from vitrine import pipeline_files
    from vitrine.store import pipelines

    with building.connect_store(building.service_settings()) as store:
        stored = pipelines.list_page(store, limit=10_000)
    written = pipeline_files.write_folder(folder, stored)
    output.show(f"{len(written)} file(s) in {folder}")


def schema() -> None:
    """Show the JSON Schema of a pipeline's YAML file, for editors."""
    from vitrine import pipeline_files

    output.show(pipeline_files.schema_text().rstrip("\n"))
