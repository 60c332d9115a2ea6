"""Commands for pipelines as YAML files: apply, export."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrine.cli import building, output, process

if TYPE_CHECKING:
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
) -> None:
    """Create or change pipelines from YAML files: all of them, or none."""
    from vitrine import pipeline_files, revisions

    if state not in (None, "keep", "reset"):
        process.stop(f"--state is keep or reset, not '{state}'", WRONG_USE)
    settings = building.service_settings()
    documents = pipeline_files.read_folder(folder)
    refused: dict[str, str] = {}
    if not no_validate:
        with building.connect_store(settings) as store:
            work = revisions.new_work(store, documents)
        refused = _validate(work, settings)
    with building.connect_store(settings) as store:
        outcomes = revisions.apply_all(store, settings, documents, state, refused)
    for name, outcome in outcomes:
        output.show(f"{name}: {outcome}")


def _validate(work: "Sequence[tuple[str, Definition]]", settings: "Settings") -> dict[str, str]:
    """Reasons against definitions, by origin, from their sources and targets; shows their warnings."""
    from vitrine.engine import plan, validation
    from vitrine.errors import ConfigError

    refused: dict[str, str] = {}
    silent: set[str] = set()  # sources that did not respond: the wait is not repeated for every file
    for origin, definition in work:
        if definition.source in silent:
            output.show(f"warning: {origin}: not validated: source '{definition.source}' did not respond")
            continue
        try:
            checked = plan.check(definition, settings)
        except ConfigError:
            continue  # reported when the files are applied
        try:
            findings = validation.preflight(checked)
        except ConfigError as exc:
            refused[origin] = f"{exc}. To store it anyway, give --no-validate"
            continue
        if any(finding.code == validation.NOT_VALIDATED for finding in findings):
            silent.add(definition.source)
        for warning in validation.warnings_of(findings):
            output.show(f"warning: {origin}: {warning}")
    return refused


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
