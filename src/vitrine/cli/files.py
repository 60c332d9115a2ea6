"""Commands for pipelines as YAML files: apply, export, schema."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vitrine.cli import backends, differences, output, planning
from vitrine.cli.arguments import AsJson, Env, Yes
from vitrine.cli.questions import confirm

if TYPE_CHECKING:
    from vitrine.cli.backends.protocols import Definitions
    from vitrine.service.bodies.files import AppliedBody, ApplyBody
    from vitrine.service.bodies.pipelines import InvalidPipelineBody


def apply(
    folder: Annotated[Path, typer.Argument(help="A YAML file, or a folder of them.", show_default=False)],
    state: Annotated[
        Literal["keep", "reset"] | None,
        typer.Option(help="For a changed query with a checkpoint: keep or reset it.", show_default=False),
    ] = None,
    no_validate: Annotated[
        bool, typer.Option("--no-validate", help="Store the definitions without asking their sources and targets.")
    ] = False,
    no_plan: Annotated[
        bool, typer.Option("--no-plan", help="Do not show what changed definitions do to existing marts.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete pipelines that have no file in the folder; their marts stay.")
    ] = False,
    yes: Yes = False,
    env: Env = None,
    as_json: AsJson = False,
) -> None:
    """Create, change and delete pipelines as YAML files say.

    All of them, or none. For changed pipelines that have a mart, it first shows what their next runs would do to it.
    """
    if prune and folder.is_file():
        raise typer.BadParameter("--prune needs the folder with the files of all pipelines, not one file")
    body, mistakes = _read(folder, env)
    body = body.model_copy(update={"state": state, "ask": not no_validate, "dry_run": dry_run})
    with backends.opened() as backend:
        if not (no_plan or no_validate or as_json or mistakes):
            planning.show_before(backend, body.documents, state)
        others = _others(backend.definitions, body) if folder.is_dir() and (prune or dry_run) else []
        body = body.model_copy(update={"delete": others if prune else []})
        asks = bool(body.delete) and not yes and not dry_run
        if mistakes or asks:
            # the question comes after every refusal, and with everything that the answer decides
            planned = _planned(backend.definitions, body, mistakes)
            if asks:
                _show(planned, as_json=False)
                confirm(_question(body.delete), yes=yes)
            body = body.model_copy(update={"ask": False})
        applied = backend.definitions.apply(body)
    if asks and not as_json:
        output.show("applied")
        return
    _show(applied, as_json=as_json)
    if dry_run and not as_json:
        for name in [] if prune else others:
            output.show(f"{name}: has no file; --prune deletes it")
        output.show("nothing was changed: this was a dry run")


def _read(folder: Path, env: Path | None) -> "tuple[ApplyBody, Sequence[str]]":
    """The documents of the files, and the mistakes of the others."""
    from vitrine import pipeline_files
    from vitrine.service.bodies.files import ApplyBody, DocumentBody

    reading = pipeline_files.read(folder, pipeline_files.read_variables(env) if env else None)
    documents = [DocumentBody.of(document) for document in reading.documents]
    # not validated: without a document there is only the list of mistakes
    return ApplyBody.model_construct(documents=documents, delete=[]), reading.mistakes


def _planned(definitions: "Definitions", body: "ApplyBody", mistakes: Sequence[str]) -> "AppliedBody":
    """What the documents change; ConfigError with the mistakes of files and of documents together."""
    from vitrine.errors import ConfigError

    found = list(mistakes)
    try:
        if body.documents or not found:
            planned = definitions.apply(body.model_copy(update={"dry_run": True}))
            if not found:
                return planned
    except ConfigError as exc:
        if exc.code != "NOT_APPLIED":
            raise
        found += [line.removeprefix("  ") for line in str(exc).splitlines()[1:]]
    raise ConfigError("nothing was applied:\n  " + "\n  ".join(found), code="NOT_APPLIED")


def _others(definitions: "Definitions", body: "ApplyBody") -> list[str]:
    """Stored pipelines that no document defines, valid or not."""
    from vitrine.service.bodies.filters import EVERY

    named = {str(document.fields.get("name")) for document in body.documents}
    return [name for page in definitions.pages(EVERY) for name in page.names if name not in named]


def _show(applied: "AppliedBody", *, as_json: bool) -> None:
    if as_json:
        output.show_body(applied)
        return
    for warning in applied.warnings:
        output.show(f"warning: {warning}")
    differences.show(applied.pipelines)


def _question(delete: Sequence[str]) -> str:
    return f"Delete {len(delete)} pipeline(s) with state and history ({', '.join(delete)}), and apply the others?"


def export(
    folder: Annotated[Path, typer.Argument(help="The folder to write the files to.", show_default=False)],
) -> None:
    """Write every pipeline as a YAML file.

    `apply` reads them back. The JSON Schema for editors is written beside them. A pipeline whose stored definition is
    not valid is left out, and the exit code is then 1.
    """
    from vitrine import pipeline_files
    from vitrine.errors import ConfigError
    from vitrine.service.bodies.filters import EVERY

    invalid: list[InvalidPipelineBody] = []
    written = 0
    with backends.opened() as backend:
        for page in backend.definitions.pages(EVERY):
            invalid += page.invalid
            try:
                written += len(pipeline_files.write_folder(folder, [(one.id, one.definition()) for one in page.items]))
            except OSError as exc:
                raise ConfigError(f"cannot write '{exc.filename}': {exc.strerror}", code="NO_FILE") from exc
    output.show(f"{written} file(s) in {folder}")
    if invalid:
        raise ConfigError(_left_out(invalid), code="NOT_EXPORTED")


def _left_out(invalid: "Sequence[InvalidPipelineBody]") -> str:
    lines = [f"{one.name}: the stored definition is not valid: {one.reason}" for one in invalid]
    return (
        f"{len(invalid)} pipeline(s) left out; apply a valid definition with `vitrine apply`, or delete the"
        " pipeline:\n  " + "\n  ".join(lines)
    )


def schema() -> None:
    """Show the JSON Schema of a pipeline file, for editors."""
    from vitrine import pipeline_files

    output.show_lines(pipeline_files.schema_text().rstrip("\n"))
