"""The command that shows what definitions would do to their marts, and the lines that `apply` shows of it."""

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vitrine.cli import backends, exit_codes, output
from vitrine.cli.arguments import AsJson, Env

if TYPE_CHECKING:
    from vitrine.cli.backends import Backend
    from vitrine.model import Definition
    from vitrine.service.bodies.files import DocumentBody
    from vitrine.service.bodies.plans import PlanBody, RunPlanBody

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
    from vitrine.service.bodies.plans import PlanList

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
                _show(found[-1])
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
    from vitrine import pipeline_files

    variables = pipeline_files.read_variables(env) if env else None
    yield from (document.valid_definition() for document in pipeline_files.read_folder(path, variables))


# -- a plan -----------------------------------------------------------------------------------------------------------


def _show(plan: "PlanBody") -> None:
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

    from vitrine import revisions
    from vitrine.errors import NotFound
    from vitrine.service.bodies.filters import EVERY

    names = {str(one.fields.get("name")) for one in documents}
    pages = backend.definitions.pages(EVERY) if len(documents) > FEW else ()
    stored = {one.name: one for page in pages for one in page.items if one.name in names}
    for one in documents:
        try:
            definition = one.document.definition
            old = stored.get(definition.name) if pages else backend.definitions.get(definition.name)
        except (ValidationError, NotFound):
            continue  # `apply` reports the one, and creates the other
        if old is not None and revisions.changes_the_work(old.definition(), definition):
            yield definition


def _summary(plan: "PlanBody") -> Iterator[str]:
    for run in plan.runs:
        if run.run != "full":
            yield run.sentence
    if plan.columns:
        yield "; ".join(f"column '{one.name}' {one.change}: {one.effect}" for one in plan.columns)
