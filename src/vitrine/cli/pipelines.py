"""Commands that inspect and control pipelines: list, status, pause, reload, validate, rejects, reconcile."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrine.cli import building, output, process
from vitrine.cli.arguments import Env, Name

if TYPE_CHECKING:
    from vitrine.engine.reconcile import Comparison
    from vitrine.engine.validation import Report
    from vitrine.errors import VitrineError
    from vitrine.model import Definition, Run
    from vitrine.settings import Settings
    from vitrine.store.pipelines import Listed


def list_all(
    tag: Annotated[str | None, typer.Option(help="Only pipelines with this tag.", show_default=False)] = None,
) -> None:
    """Every pipeline with its status and its last run."""
    from vitrine.store import pipelines

    settings = building.service_settings()
    with building.connect_store(settings) as store:
        listed = pipelines.list_with_newest_run(store, tag)
    wide = output.is_wide()
    grouped = wide and any(one.owner or one.tags for one in listed)
    columns = ("pipeline", "status", *(("mode", "target") if wide else ()), "schedule", "next due", "last run")
    numbers = ("rows", "seconds")
    rows = [
        (*_listed_row(one, settings, wide), *((one.owner, ", ".join(one.tags)) if grouped else ())) for one in listed
    ]
    output.show_table((*columns, *numbers, *(("owner", "tags") if grouped else ())), rows, right=numbers)
    for one in listed:
        if one.last_error_code:
            output.show(f"{one.name}: {one.last_error_message} [{one.last_error_code}]")


def _listed_row(one: "Listed", settings: "Settings", wide: bool) -> tuple[str, ...]:
    return (
        one.name,
        _shown_status(one),
        *((one.mode, one.target_table) if wide else ()),
        one.schedule_interval or "",
        f"{one.next_due_at.astimezone(settings.zone):%m-%d %H:%M}" if one.next_due_at else "",
        one.run_status or "never",
        f"{one.rows_read:,}" if one.rows_read is not None else "",
        f"{one.seconds:.2f}" if one.seconds is not None else "",
    )


def _shown_status(one: "Listed") -> str:
    if not one.enabled:
        return f"{one.status} (disabled)"
    return f"{one.status} (postponed)" if one.postponed and one.status == "IDLE" else one.status


def status(name: Name) -> None:
    """Status, freshness, checkpoint and last runs of one pipeline."""
    from vitrine.model import RequestKind
    from vitrine.store import pipelines, rejects, runs
    from vitrine.store import state as states

    settings = building.service_settings()
    with building.connect_store(settings) as store:
        pipeline = pipelines.get(store, name)
        quarantined = rejects.count_open(store, pipeline.id)
        state = states.load(store, pipeline.id)
        history = runs.list_page(store, pipeline.id, limit=5)
    output.show(f"{pipeline.name} is {pipeline.status}, version {pipeline.config_version}")
    if pipeline.definition.owner:
        output.show(f"owner: {pipeline.definition.owner}")
    if pipeline.definition.tags:
        output.show(f"tags: {', '.join(pipeline.definition.tags)}")
    for request, place in ((pipeline.request, "requested"), (pipeline.rerun, "requested next")):
        if request is not None and request.kind != RequestKind.RUN:
            output.show(f"{place}: {request.label}")
    if pipeline.fresh_as_of:
        shown = (
            "the source" if pipeline.freshness_covers == "everything" else f"{pipeline.freshness_covers} of the source"
        )
        output.show(f"the mart shows {shown} as of {pipeline.fresh_as_of:%Y-%m-%d %H:%M:%S %Z}")
    if pipeline.next_due_at:
        due = output.local_time(pipeline.next_due_at, settings)
        times = f"postponed {pipeline.postponed} time(s), " if pipeline.postponed else ""
        output.show(f"next due: {due} ({times}{pipeline.definition.schedule_interval})")
    if pipeline.last_error:
        at = output.local_time(pipeline.last_error.at, settings)
        output.show(f"last error, at {at}: {pipeline.last_error.message} [{pipeline.last_error.code}]")
    if state.position.cursor:
        output.show(f"checkpoint: {' / '.join(state.position.cursor)}")
    if state.horizon_blocker:
        output.show(f"held back by {state.horizon_blocker}, open for {state.horizon_lag_seconds:.0f} s")
    if quarantined:
        output.show(f"in quarantine: {quarantined:,} row(s); see vitrine rejects {pipeline.name}")
    _show_runs(history, settings)


def _show_runs(history: "list[Run]", settings: "Settings") -> None:
    wide = output.is_wide()
    columns = ("run", *(("kind",) if wide else ()), "status", "started")
    numbers = ("seconds", "read", "written", "deleted", "rejected")
    rows = [
        (
            str(one.id),
            *((one.kind,) if wide else ()),
            one.status,
            f"{one.started_at.astimezone(settings.zone):%m-%d %H:%M:%S}",
            f"{one.seconds:.2f}" if one.seconds is not None else "",
            *(f"{count:,}" for count in (one.rows_read, one.rows_written, one.rows_deleted, one.rows_rejected)),
        )
        for one in history
    ]
    output.show_table((*columns, *numbers), rows, right=numbers)
    for one in history:
        if one.error_message:
            output.show(f"run {one.id}: {one.error_message} [{one.error_code}]")


def pause(name: Name) -> None:
    """Pause a pipeline: at once if it is not running, otherwise after its current batch."""
    from vitrine.store import pipelines

    with building.connect_store(building.service_settings()) as store:
        output.show(f"{name}: {pipelines.request_pause(store, name)}")


def reload(name: Name) -> None:
    """Make a running pipeline use the stored batch_size, max_rows_per_second and pause_between_batches."""
    from vitrine import revisions

    with building.connect_store(building.service_settings()) as store:
        requested = revisions.reload(store, name)
    pipeline = requested.pipeline
    if not requested.running:
        output.show(f"{pipeline.name} is {pipeline.status}; the next run uses the stored configuration")
        return
    output.show(f"{pipeline.name}: the run uses the stored throttle from its next batch")
    if requested.waiting:
        output.show(f"for the next run: {', '.join(requested.waiting)}")


def validate(
    what: Annotated[str, typer.Argument(help="Name of a pipeline, or a YAML file.", show_default=False)],
    env: Env = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, with codes and places.")] = False,
) -> None:
    """Check a pipeline against its source and target without moving a row. Exit code 0 ready to run, 1 not."""
    from vitrine.engine import validation
    from vitrine.errors import VitrineError

    settings = building.service_settings()
    definition = _definition(what, env, settings)
    try:
        report = validation.validate(definition, settings)
    except VitrineError as exc:
        if not as_json:
            raise
        output.show_json(_refusal(definition, exc))
        sys.exit(process.FAILED)
    if as_json:
        output.show_json(_report(definition, report))
    else:
        _show_report(definition, report, settings)


def _refusal(definition: "Definition", exc: "VitrineError") -> dict[str, object]:
    place = asdict(exc.place) if exc.place else None
    error = {"code": exc.code, "text": str(exc), "place": place}
    return {"name": definition.name, "ready": False, "error": error}


def _report(definition: "Definition", report: "Report") -> dict[str, object]:
    return {
        "name": definition.name,
        "ready": True,
        "target": definition.target_table,
        "mode": definition.mode,
        "lane": report.lane,
        "columns": [{"name": column.name, "type": column.type} for column in report.columns],
        "key": report.key,
        "target_exists": report.target_exists,
        "rows_expected": report.rows_expected,
        "first_due_at": report.first_due_at.isoformat() if report.first_due_at else None,
        "findings": [
            {name: value for name, value in asdict(finding).items() if name != "fatal"} for finding in report.findings
        ],
    }


def _show_report(definition: "Definition", report: "Report", settings: "Settings") -> None:
    output.show(f"{definition.name} → {definition.target_table}, {definition.mode}, lane {report.lane}")
    output.show("columns: " + ", ".join(f"{column.name} {column.type}" for column in report.columns))
    output.show(f"key: {', '.join(report.key)}" + ("" if report.target_exists else " (the target will be created)"))
    if report.rows_expected is not None:
        output.show(f"about {report.rows_expected:,} rows")
    if report.first_due_at is not None:
        due = output.local_time(report.first_due_at, settings)
        output.show(f"schedule: {definition.schedule_interval}, due at {due}")
    for finding in report.findings:
        output.show(f"{'note' if finding.note else 'warning'}: {finding.text} [{finding.code}]")
        if finding.place is not None:
            output.show(finding.place.excerpt())


def _definition(what: str, env: Path | None, settings: "Settings") -> "Definition":
    if Path(what).suffix in (".yaml", ".yml"):
        from vitrine import pipeline_files

        (document,) = pipeline_files.read_folder(Path(what), pipeline_files.read_variables(env) if env else None)
        return document.valid_definition()
    from vitrine.store import pipelines

    with building.connect_store(settings) as store:
        return pipelines.get(store, what).definition


def rejects(name: Name) -> None:
    """Rows of a pipeline in quarantine, with the reasons."""
    from vitrine.store import pipelines
    from vitrine.store.rejects import list_open

    with building.connect_store(building.service_settings()) as store:
        pipeline = pipelines.get(store, name)
        quarantined = list_open(store, pipeline.id)
    if not quarantined:
        output.show(f"{pipeline.name}: no row is in quarantine")
        return
    rows = [
        (
            one["key"],
            one["column_name"] or "",
            one["code"],
            one["reason"],
            str(one["run_id"]),
            f"{one['created_at']:%Y-%m-%d %H:%M:%S}",
        )
        for one in quarantined
    ]
    output.show_table(("key", "column", "code", "reason", "run", "since"), rows, wrap=("key", "column", "reason"))


def reconcile(name: Name) -> None:
    """Compare a mart with its source, and name what is left out. Exit code 0 equal, 2 different."""
    from vitrine.engine import reconcile as reconciling
    from vitrine.store import pipelines, runs

    settings = building.service_settings()
    with building.connect_store(settings) as store:
        pipeline = pipelines.get(store, name)
        quarantined = runs.context(store, pipeline.id).open_rejects
    comparison = reconciling.compare(pipeline.definition, settings, quarantined)
    _show_comparison(comparison)
    for sentence in comparison.left_out:
        output.show(f"left out: {sentence}")
    output.show(f"{pipeline.name}: {comparison.sentence()}")
    sys.exit(0 if comparison.equal else process.DIFFERENT)


def _show_comparison(comparison: "Comparison") -> None:
    from vitrine.tables import red

    fields = {
        "rows": "rows",
        "lowest": f"lowest {comparison.control}",
        "highest": f"highest {comparison.control}",
        "hash": f"hash over {len(comparison.columns)} column(s)",
    }
    rows: list[tuple[str, str, str]] = []
    for field, label in fields.items():
        source, target = getattr(comparison.source, field), getattr(comparison.target, field)
        rows.append((label, str(source), str(target) if source == target else red(target)))
    output.show_table(("", "source", "target"), rows, wrap=("source", "target"))
