"""Commands for pipelines as YAML files: init, plan, apply, export, schema."""

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vitrine.cli import backends, exit_codes, output
from vitrine.cli.arguments import AsJson, Env, Yes
from vitrine.cli.process import confirm
from vitrine.text import printable

if TYPE_CHECKING:
    from vitrine.cli.backends import Backend
    from vitrine.cli.backends.protocols import Definitions
    from vitrine.definition.model import Definition
    from vitrine.operations.bodies.pipelines import InvalidPipelineBody
    from vitrine.operations.bodies.plans import (
        AppliedBody,
        AppliedPipelineBody,
        ApplyBody,
        DifferenceBody,
        DocumentBody,
        PlanBody,
        RunPlanBody,
    )

LONGEST_LINE = 60
"""Two longer values are shown below each other."""


def show_differences(applied: "Iterable[AppliedPipelineBody]") -> None:
    for one in applied:
        output.show(f"{one.name}: {one.outcome}")
        for difference in one.differences:
            for line in _lines(difference):
                output.show(f"  {line}")
        if one.resets:
            output.show("  state: reset")
        if one.drifted:
            output.show("  it had been changed since its file was applied; the file replaces these changes")


def _lines(difference: "DifferenceBody") -> Iterator[str]:
    old, new = _text(difference.old), _text(difference.new)
    if "\n" not in old + new and len(old) + len(new) <= LONGEST_LINE:
        yield f"{difference.field}: {printable(old)} → {printable(new)}"
        return
    from difflib import ndiff

    yield f"{difference.field}:"
    for line in ndiff(old.split("\n"), new.split("\n")):
        if not line.startswith("?"):
            yield f"  {printable(line)}".rstrip()


def _text(value: Any) -> str:
    if value is None:
        return "default"
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


APPLY_SECONDS = 5.0
"""How long `apply` waits for the plan of one pipeline."""

APPLY_SECONDS_IN_ALL = 15.0
FEW = 20
"""Pipelines that are read one by one; of more, the whole list is read."""

RUNS = {"next": "next run", "keep": "next run, state: keep", "reset": "next run, state: reset", "full": "full run"}


def plan(
    what: Annotated[
        list[str],
        typer.Argument(help="YAML files, folders of them, or names of pipelines.", show_default=False),
    ],
    state: Annotated[
        Literal["keep", "reset"] | None,
        typer.Option(help="For a changed query with a checkpoint: plan only this choice.", show_default=False),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            max=3600,
            help="How long rows are compared at most, for each pipeline; 60 by default. An API has a limit of its own.",
            show_default=False,
        ),
    ] = None,
    env: Env = None,
    as_json: AsJson = False,
) -> None:
    """Show what definitions would do to their marts.

    Rows added, changed and removed, columns, state, time; nothing is written. Exit code 0 planned, 1 a run would be
    refused or fail.
    """
    from vitrine.errors import VitrineError
    from vitrine.operations.bodies.plans import PlanList

    subjects = [subject for one in what for subject in _subjects(one, env)]
    found: list[PlanBody] = []
    errors: list[VitrineError] = []
    with backends.opened() as backend:
        for subject in subjects:
            try:
                found.append(backend.checks.plan(subject, state=state, seconds=seconds))
            except VitrineError as exc:
                if as_json or len(subjects) == 1:
                    raise
                errors.append(exc)
                output.show(f"{subject if isinstance(subject, str) else subject.name}: not planned: {exc}")
                continue
            if not as_json:
                _show_plan(found[-1])
    if as_json:
        output.show_body(PlanList(items=found))
    else:
        output.show("nothing was changed: these are plans")
    is_refused = any(run.refused for one in found for run in one.runs if run.run != "full")
    sys.exit(exit_codes.FAILED if errors or is_refused else exit_codes.DONE)


def _subjects(what: str, env: Path | None) -> "Iterator[str | Definition]":
    """The definitions of files, or the name of a stored pipeline."""
    path = Path(what)
    if path.suffix not in (".yaml", ".yml") and not path.is_dir():
        yield what
        return
    from vitrine.definition import files, yaml

    variables = yaml.read_variables(env) if env else None
    yield from (document.valid_definition() for document in files.read_folder(path, variables))


# -- a plan -----------------------------------------------------------------------------------------------------------


def _show_plan(plan: "PlanBody") -> None:
    kind = "changed" if plan.changes else ("stored" if plan.stored else "new")
    output.show(f"{plan.name} → {plan.target}, {plan.mode}, {kind}")
    if plan.changes:
        output.show_wrapped(f"changes: {', '.join(plan.changes)}", "  ")
    if not plan.target_exists:
        output.show("the mart does not exist: the first run creates it")
    output.show_wrapped(f"state: {plan.state.sentence}", "  ")
    if plan.columns:
        rows = [(one.change, one.name, one.stored or "", one.produced or "", one.effect) for one in plan.columns]
        output.show_table(("column", "name", "in the mart", "in the rows", "effect"), rows, wrap=("name", "effect"))
    _show_runs(plan)
    for run in plan.runs:
        _show_details(run)
    if plan.rebuilds and plan.mode == "full":
        output.show_wrapped("the index is built again: a run writes every document, whether it changes or not", "  ")
    if plan.rows_expected is not None:
        output.show(f"source: about {plan.rows_expected:,} rows, as its planner estimates")
    if plan.cursor is not None:
        output.show_wrapped(f"cursor: {plan.cursor}", "  ")
    for finding in plan.findings:
        if finding.code != "CURSOR_NOT_INDEXED":
            output.show_wrapped(f"{'note' if finding.note else 'warning'}: {finding.text} [{finding.code}]", "  ")
    for sentence in plan.left_out:
        output.show_wrapped(f"left out: {sentence}", "  ")


def _show_runs(plan: "PlanBody") -> None:
    columns = ("run", "reads", "added", "changed", "removed", "stay", "written", "time")
    rows = [
        (
            RUNS[run.run],
            run.reads,
            *(_figure(count, run) for count in (run.added, run.changed, run.removed, run.kept, run.written)),
            "unknown" if run.seconds is None else f"{run.seconds:,.1f} s",
        )
        for run in plan.runs
    ]
    output.show_table(columns, rows, right=columns[2:])


def _figure(count: int | None, run: "RunPlanBody") -> str:
    sign = {"exact": "", "sample": "~", "partial": "≥"}[run.method or "exact"]
    return "-" if count is None else f"{sign if count else ''}{count:,}"


def _show_details(run: "RunPlanBody") -> None:
    name = RUNS[run.run]
    if run.refused is not None:
        output.show_wrapped(f"{name}: would be refused or fail: {run.refused}", "  ")
    if run.reason is not None:
        output.show_wrapped(f"{name}: rows were not counted: {run.reason}", "  ")
    if run.method in ("sample", "partial"):
        output.show_wrapped(f"{name}: {_estimate(run)}", "  ")
    if run.changed_columns:
        named = ", ".join(f"{column} ({count:,})" for column, count in run.changed_columns.items())
        output.show_wrapped(f"{name}: changed columns: {named}", "  ")
    examples = run.examples
    changed = [f"{key} ({', '.join(names)})" for key, names in examples.changed.items()]
    for kind, keys in (("added", examples.added), ("changed", changed), ("only in the mart", examples.removed)):
        if keys:
            output.show_wrapped(f"{name}: {kind}, for example: {'; '.join(keys)}", "  ")


def _estimate(run: "RunPlanBody") -> str:
    if run.method == "sample":
        return f"~ are estimates from a random sample of {run.rows_compared or 0:,} rows; --seconds allows more"
    return f"≥ counts the first {run.rows_compared or 0:,} rows only, for want of time; --seconds allows more"


# -- before apply -----------------------------------------------------------------------------------------------------


def show_before(
    backend: "Backend", documents: "Iterable[DocumentBody]", state: Literal["keep", "reset"] | None
) -> None:
    """What changed documents do to marts that exist, one or two lines each; never the reason why `apply` fails."""
    from vitrine.errors import VitrineError

    ends = time.monotonic() + APPLY_SECONDS_IN_ALL
    skipped = 0
    try:
        changed = list(_changed(backend, list(documents)))
    except VitrineError:
        return  # `apply` reports it
    for definition in changed:
        seconds = min(APPLY_SECONDS, ends - time.monotonic())
        if seconds < 1:
            skipped += 1
            continue
        try:
            plan = backend.checks.plan(definition, state=state, seconds=seconds)
        except VitrineError as exc:
            output.show_wrapped(f"{definition.name}: plan not computed: {exc}", "  ")
            continue
        if plan.target_exists:
            for line in _summary(plan):
                output.show_wrapped(f"{plan.name}: plan: {line}", "  ")
    if skipped:
        output.show(f"{skipped} more plan(s) not computed, for want of time; `vitrine plan` shows them")


def _changed(backend: "Backend", documents: "list[DocumentBody]") -> "Iterator[Definition]":
    """Definitions that change what a stored pipeline reads or writes; invalid ones are left out."""
    from pydantic import ValidationError

    from vitrine.errors import NotFound
    from vitrine.operations import changes
    from vitrine.operations.bodies.filters import EVERY

    names = {str(one.fields.get("name")) for one in documents}
    pages = backend.definitions.pages(EVERY) if len(documents) > FEW else ()
    stored = {one.name: one for page in pages for one in page.items if one.name in names}
    for one in documents:
        try:
            definition = one.document.definition
            old = stored.get(definition.name) if pages else backend.definitions.get(definition.name)
        except (ValidationError, NotFound):
            continue  # `apply` reports the one, and creates the other
        if old is not None and changes.changes_the_work(old.definition(), definition):
            yield definition


def _summary(plan: "PlanBody") -> Iterator[str]:
    for run in plan.runs:
        if run.run != "full":
            yield run.sentence
    if plan.columns:
        yield "; ".join(f"column '{one.name}' {one.change}: {one.effect}" for one in plan.columns)


MARKER = ".vitrine-project"

ENV = """\
# Settings of this project; Vitrine reads this file in the folder where it is started. Keep it out of version control.
# Every setting: `vitrine --help`, and .env.sample in the repository of Vitrine.

# The database with the store (schema etl) and the marts; also the default source. Without it, `vitrine up` starts an
# embedded PostgreSQL.
# VITRINE_DATABASE_URL=postgresql://vitrine:choose-one@127.0.0.1:5432/cinema

# An account that may only read, for the source.
# VITRINE_SOURCES__DEFAULT=postgresql://reader:choose-one@127.0.0.1:5432/cinema

# Schemas that pipelines may read.
# VITRINE_ALLOWED_SOURCE_SCHEMAS=content,ugc

# Elasticsearch, for targets es:index.
# VITRINE_ELASTICSEARCH_URL=https://search.example.com:9200

# Work through the API of another machine instead of the database.
# VITRINE_API_URL=https://vitrine.example.com
"""

GITIGNORE = """\
.env
.vitrine/
"""

EXAMPLE = """\
# yaml-language-server: $schema=pipeline.schema.json
# An example. `vitrine discover` lists your own tables; `vitrine discover TABLE --write pipelines/TABLE.yaml` writes a
# pipeline for one of them.
name: top_genres
description: Films per genre
source_query: |
  SELECT g.id, g.name, count(gf.film_work_id) AS films
    FROM content.genre g
    LEFT JOIN content.genre_film_work gf ON gf.genre_id = g.id
   GROUP BY g.id, g.name
target_table: analytics.top_genres
key_columns: [id]
schedule_interval: 5m
enabled: false   # the first `vitrine run top_genres` needs true
"""


def init(
    folder: Annotated[Path, typer.Argument(help="The folder; it is created if it does not exist.")] = Path(),
) -> None:
    """Make a project folder; existing files are kept.

    .env with comments, pipelines/ with an example, .gitignore.
    """
    from vitrine.definition.files import SCHEMA_FILE, schema_text
    from vitrine.errors import ConfigError

    files = {
        folder / ".env": ENV,
        folder / ".gitignore": GITIGNORE,
        folder / "pipelines" / "top_genres.yaml": EXAMPLE,
        folder / "pipelines" / SCHEMA_FILE: schema_text(),
        folder / MARKER: "A project of Vitrine.\n",
    }
    # the example is for an empty project: beside pipelines of a user, `apply` would add it to them
    has_pipelines = (folder / "pipelines").is_dir() and any((folder / "pipelines").glob("*.y*ml"))
    if has_pipelines:
        del files[folder / "pipelines" / "top_genres.yaml"]
    try:
        for file, text in files.items():
            output.show(f"{'created' if _write_new(file, text) else 'kept   '}  {file}")
    except OSError as exc:
        raise ConfigError(f"cannot write '{exc.filename}': {exc.strerror}", code="NO_FILE") from exc
    output.show_lines(_next_steps(folder))


def _write_new(file: Path, text: str) -> bool:
    """Whether the file was created; an existing one is never changed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        # .env will contain passwords
        file.touch(0o600 if file.name == ".env" else 0o666, exist_ok=False)
    except FileExistsError:
        return False
    file.write_text(text, "utf-8")
    return True


def _next_steps(folder: Path) -> str:
    there = "" if folder == Path() else f"cd {folder}, then "
    return (
        f"\nNext: {there}give VITRINE_DATABASE_URL in .env, `vitrine migrate`, `vitrine doctor`, `vitrine discover`,\n"
        "`vitrine apply pipelines`. To look around without a database: `vitrine demo`."
    )


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
            show_before(backend, body.documents, state)
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
    from vitrine.definition import files, yaml
    from vitrine.operations.bodies.plans import ApplyBody, DocumentBody

    reading = files.read(folder, yaml.read_variables(env) if env else None)
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
    from vitrine.operations.bodies.filters import EVERY

    named = {str(document.fields.get("name")) for document in body.documents}
    return [name for page in definitions.pages(EVERY) for name in page.names if name not in named]


def _show(applied: "AppliedBody", *, as_json: bool) -> None:
    if as_json:
        output.show_body(applied)
        return
    for warning in applied.warnings:
        output.show(f"warning: {warning}")
    show_differences(applied.pipelines)


def _question(delete: Sequence[str]) -> str:
    return f"Delete {len(delete)} pipeline(s) with state and history ({', '.join(delete)}), and apply the others?"


def export(
    folder: Annotated[Path, typer.Argument(help="The folder to write the files to.", show_default=False)],
) -> None:
    """Write every pipeline as a YAML file.

    `apply` reads them back. The JSON Schema for editors is written beside them. A pipeline whose stored definition is
    not valid is left out, and the exit code is then 1.
    """
    from vitrine.definition import files
    from vitrine.errors import ConfigError
    from vitrine.operations.bodies.filters import EVERY

    invalid: list[InvalidPipelineBody] = []
    written = 0
    with backends.opened() as backend:
        for page in backend.definitions.pages(EVERY):
            invalid += page.invalid
            try:
                written += len(files.write_folder(folder, [(one.id, one.definition()) for one in page.items]))
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
    from vitrine.definition import files

    output.show_lines(files.schema_text().rstrip("\n"))
