"""Commands for pipelines as YAML files: apply, export."""

from pathlib import Path
from typing import Annotated

import typer

from vitrine.cli import building, output, process

WRONG_USE = 2


def apply(
    folder: Annotated[Path, typer.Argument(help="A YAML file, or a folder of them.", show_default=False)],
    state: Annotated[
        str | None, typer.Option(help="For a changed query with a checkpoint: keep or reset it.", metavar="keep|reset")
    ] = None,
) -> None:
    """Create or change pipelines from YAML files: all of them, or none."""
    from vitrine import pipeline_files, revisions

    if state not in (None, "keep", "reset"):
        process.stop(f"--state is keep or reset, not '{state}'", WRONG_USE)
    settings = building.service_settings()
    documents = pipeline_files.read_folder(folder)
    with building.connect_store(settings) as store:
        outcomes = revisions.apply_all(store, settings, documents, state)
    for name, outcome in outcomes:
        output.show(f"{name}: {outcome}")


def export(
    folder: Annotated[Path, typer.Argument(help="The folder to write the files to.", show_default=False)],
) -> None:
    """Write every pipeline as a YAML file that `apply` reads back."""
    from vitrine import pipeline_files
    from vitrine.store import pipelines

    with building.connect_store(building.service_settings()) as store:
        stored = pipelines.list_page(store, limit=10_000)
    written = pipeline_files.write_folder(folder, stored)
    output.show(f"{len(written)} file(s) in {folder}")
