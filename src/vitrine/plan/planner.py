"""Builds the plan of a definition, or refuses the definition with every reason."""

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from vitrine.core.checks import RowCount, Sql
from vitrine.core.protocols import Lease, Limits, MarkedKeys, Plan, Sink, Source, Transformer
from vitrine.core.row_checks import CHECK_UNSUPPORTED
from vitrine.core.rows import Column, Finding, Lane, SourceInfo, TargetInfo
from vitrine.core.status import RequestKind
from vitrine.definition import connectors, registry
from vitrine.definition.connectors import Connector, Target
from vitrine.definition.context import RejectPolicy, RunInfo, SinkJob, SourceJob
from vitrine.definition.model import Definition, Mode, Options, Step, TaskType
from vitrine.definition.pipeline import Claim
from vitrine.definition.registry import BoundTask, Kind
from vitrine.errors import ConfigError, DefinitionRefused, RelationMissing, RequestRefused, VitrineError
from vitrine.settings import Settings
from vitrine.sql import policy


def refuse_queries(definition: Definition) -> None:
    """ConfigError for the first query of a check that the policy refuses."""
    for check in definition.checks:
        if isinstance(check, Sql):
            try:
                policy.check_sql(check.query)
            except ConfigError as refused:
                place = f", {refused.place}" if refused.place else ""
                text = f"check '{check.label}'{place}: {refused}"
                raise ConfigError(text, code=refused.code, place=refused.place) from None


def unsupported(definition: Definition, target: TargetInfo) -> Iterator[Finding]:
    """Checks that the sink would not carry out: rows must not be published without them."""
    for check in definition.checks:
        if check.kind not in target.checks:
            known = f"it has: {', '.join(sorted(target.checks))}" if target.checks else "it has none"
            text = (
                f"check '{check.label}': target {definition.target_table} has no checks of type {check.kind}; {known}"
            )
            yield Finding(CHECK_UNSUPPORTED, text, next(iter(check.checked), None), fatal=True)


def notes(definition: Definition) -> Iterator[Finding]:
    for check in definition.checks:
        if isinstance(check, RowCount) and definition.mode is Mode.INCREMENTAL:
            text = (
                f"check '{check.label}' is carried out when a load is published: the first load and full runs; changes"
                " are written without it"
            )
            yield Finding("CHECK_LOADS_ONLY", text, note=True)


Checked = TypeVar("Checked")

BATCH_ROWS = {Lane.COPY: 50_000, Lane.TEXT: 20_000, Lane.FRAMES: 20_000, Lane.ROWS: 5_000}
"""Rows of a batch if batch_size is auto: large enough for few round trips, small enough for short transactions.

A frame is several times as large as its rows; with a row transform, Python costs more than the round trips."""

BATCH_BYTES = {Lane.TEXT: 8 * 1024 * 1024, Lane.ROWS: 8 * 1024 * 1024}
"""Replaces the default of max_batch_bytes: a row in Python is many times as large as its text."""

COMPARING = "vitrine:reconcile"
"""The name of sessions outside a run."""


class NoLease:
    """For reads outside a run: there is no deadline."""

    def seconds_left(self) -> float:
        return float("inf")

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


class CheckedDefinition(NamedTuple):
    """A definition that passed every check that needs no connection."""

    definition: Definition
    target: Target
    source: Source
    sink: Sink
    tasks: tuple[BoundTask, ...]  # registered transforms, in order
    show_keys: bool = True  # errors may quote the keys of rows

    def cancel(self) -> None:
        """From any thread: what source and sink do at the moment ends within a second."""
        self.source.cancel()
        self.sink.cancel()


class Prepared(NamedTuple):
    """A plan, the source it reads, and the lane of its sink."""

    plan: Plan
    source: SourceInfo
    lane: Lane  # of the rows that the sink receives

    def close(self) -> None:
        self.plan.close()


@dataclass(frozen=True)
class Known:
    """What the sink of a run needs from the store."""

    installation: str = ""
    open_rejects: Collection[str] = ()
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])


def allowed_targets(settings: Settings) -> tuple[str, ...]:
    """Patterns of the targets that may be written; by default analytics, and those of configured connectors."""
    if settings.allowed_targets is not None:
        return settings.allowed_targets
    schemes = [one.sink.scheme for one in connectors.installed().values() if one.sink and _is_configured(one, settings)]
    return ("analytics.*", *(f"{scheme}:*" for scheme in schemes if scheme))


def _is_configured(connector: Connector, settings: Settings) -> bool:
    return getattr(settings.section(connector.name, connector.settings), "is_configured", True)


def limits_of(definition: Definition, lane: Lane) -> Limits:
    """The throttle of a definition in a lane."""
    options, size = definition.options, definition.batch_size
    default_bytes = Options.model_fields["max_batch_bytes"].default
    max_bytes = options.max_batch_bytes
    return Limits(
        batch_rows=BATCH_ROWS[lane] if size == "auto" else size,
        batch_bytes=BATCH_BYTES.get(lane, max_bytes) if max_bytes == default_bytes else max_bytes,
        max_rows_per_second=options.max_rows_per_second,
        pause_between_batches=options.pause_between_batches,
    )


# -- checks that need no connection -----------------------------------------------------------------------------------


def check(
    definition: Definition,
    settings: Settings,
    *,
    lease: Lease | None = None,
    run: RunInfo | None = None,
    known: Known | None = None,
) -> CheckedDefinition:
    """Check every rule that needs no connection, by building source and sink; ConfigError names all that are broken.

    A source whose connection is unknown is built without one, so that its query is checked as well.
    """
    reasons: list[tuple[str, VitrineError]] = []
    plan_field, query_field = ("tasks", "tasks") if definition.tasks else ("python_task", "source_query")

    def attempt(field: str, rule: Callable[[], Checked]) -> Checked | None:
        try:
            return rule()
        except VitrineError as exc:
            reasons.append((field, exc))
            return None

    if any(step.task_type is TaskType.PYTHON for step in definition.steps):
        registry.load(settings.transform_modules)
    lease = lease or NoLease()
    run = run or RunInfo(COMPARING, show_keys=settings.show_keys_in_errors)
    reasons += [(plan_field, ConfigError(text, code="PLAN")) for text in _contract_violations(definition)]
    attempt("checks", lambda: refuse_queries(definition))
    steps = [step for step in definition.transform_steps if (step.body or "").strip()]
    tasks = [attempt(plan_field, lambda step=step: _bind(step, registry.transforms)) for step in steps]
    url = (
        None
        if definition.reader is not None
        else attempt("source", lambda: settings.source_url(definition.source)) or ""
    )
    rejects = RejectPolicy(definition.target_table, definition.options, show_keys=run.show_keys)
    source = (
        attempt(query_field, lambda: _build_source(definition, settings, url, lease, run, rejects))
        if _can_read(definition)
        else None
    )
    target = attempt("target_table", lambda: _check_target(definition.target_table, settings))
    sink = (
        attempt(
            "target_table", lambda: _build_sink(target, definition, settings, lease, run, rejects, known or Known())
        )
        if target
        else None
    )
    if reasons or source is None or target is None or sink is None:
        raise DefinitionRefused(reasons)
    bound = tuple(task for task in tasks if task is not None)
    return CheckedDefinition(definition, target, source, sink, bound, run.show_keys)


def _check_target(name: str, settings: Settings) -> Target:
    parsed = connectors.parse_target(name)
    if parsed is not None and settings.allowed_targets is None and not _is_configured(parsed.connector, settings):
        section = settings.section(parsed.connector.name, parsed.connector.settings)
        remedy = getattr(section, "needs", "give its settings")
        raise ConfigError(
            f"target '{name}' needs connector '{parsed.connector.name}', which is not configured: {remedy}",
            code="TARGET_NOT_ALLOWED",
        )
    return connectors.check_target(name, allowed_targets(settings))


def _can_read(definition: Definition) -> bool:
    """Whether the first step names something to read; the contract reports it otherwise."""
    reader = definition.reader
    if reader is None:
        return definition.query is not None
    return bool((reader.body or "").strip()) and not _is_transform(reader)


def _build_source(
    definition: Definition, settings: Settings, url: str | None, lease: Lease, run: RunInfo, rejects: RejectPolicy
) -> Source:
    connector = connectors.source(definition.source_connector)
    spec = connector.source
    if spec is None:
        raise ConfigError(f"connector '{connector.name}' cannot be read", code="UNKNOWN_SOURCE_TYPE")
    section = settings.section(connector.name, connector.settings)
    job = SourceJob(definition, definition.options, section, lease, run, url, rejects)
    return connectors.load_class(connector, spec.factory)(job)


def _build_sink(
    target: Target,
    definition: Definition,
    settings: Settings,
    lease: Lease,
    run: RunInfo,
    rejects: RejectPolicy,
    known: Known,
) -> Sink:
    connector, spec = target.connector, target.connector.sink
    if spec is None:
        raise ConfigError(f"connector '{connector.name}' cannot be written", code="BAD_TARGET")
    job = SinkJob(
        target,
        definition,
        definition.options,
        settings.section(connector.name, connector.settings),
        lease,
        run,
        rejects,
        settings.store_url,
        known.open_rejects,
        known.facts,
    )
    return connectors.load_class(connector, spec.factory)(job)


def _bind(step: Step, installed: registry.Registry) -> BoundTask:
    """The registered task of a step, with its options; ConfigError where either is wrong."""
    task = installed.get((step.body or "").strip())
    if task.kind is Kind.FRAME and not registry.has_frames():
        raise ConfigError(
            f"transform '{task.name}' works on frames and needs the extra `frames`: pip install 'vitrine-etl[frames]'",
            code="EXTRA_MISSING",
        )
    return task.validate(step.options)


def _is_transform(step: Step) -> bool:
    return step.body in registry.transforms.names()


def _contract_violations(definition: Definition) -> Iterator[str]:
    """The task plan's contract: one step reads, registered transforms follow, the last step has the target."""
    ordered = definition.steps
    if not definition.tasks:
        if not ordered or (ordered[0].task_type is TaskType.PYTHON and _is_transform(ordered[0])):
            yield "source_query is missing: give the query to read, tasks, or a reader as python_task"
        return
    indexes = [step.order_index for step in ordered]
    if len(set(indexes)) < len(indexes):
        yield "tasks: two steps have the same order_index"
    if ordered[0].task_type is TaskType.PYTHON and _is_transform(ordered[0]):
        yield "tasks: the first step reads, so it must be SQL or name a registered reader"
    for step in ordered:
        yield from _step_violations(step, definition)


def _step_violations(step: Step, definition: Definition) -> Iterator[str]:
    place = f"tasks: step {step.order_index}"
    first, last = definition.steps[0], definition.steps[-1]
    if step.task_type is TaskType.SQL and step is not first:
        yield f"{place} is SQL, but only the first step reads; the others are PYTHON"
    if not (step.body or "").strip() and not (step.task_type is TaskType.SQL and step.source_table):
        yield f"{place} has no body"
    if step.task_type is TaskType.PYTHON and step.source_table:
        yield f"{place} has a source_table, which only the SQL step may have"
    if step.task_type is TaskType.SQL and step.source_table and step.body:
        yield f"{place} has both a body and a source_table; keep one"
    if step.task_type is TaskType.SQL and step.options:
        yield f"{place} is SQL, which takes no options"
    if step.target_table and step is not last:
        yield f"{place} has a target_table, which only the last step may have"


# -- plans ------------------------------------------------------------------------------------------------------------


Preparing = Callable[[CheckedDefinition], AbstractContextManager[None]]
"""Entered while source and target are asked, so that another thread can cancel their calls."""


def build(
    claim: Claim, settings: Settings, lease: Lease, known: Known, *, preparing: Preparing = lambda _: nullcontext()
) -> Prepared:
    """The plan of a run from its claimed configuration; every rule is checked again first."""
    run = run_info(claim, settings, known)
    checked = check(claim.definition, settings, lease=lease, run=run, known=known)
    with preparing(checked):
        return prepare(checked, allow_shrink=claim.options.allow_shrink, full_run=is_full_run(claim))


def is_full_run(claim: Claim) -> bool:
    """Whether an incremental pipeline loads everything once; each run of another one does that."""
    return claim.kind is RequestKind.FULL and claim.definition.mode is Mode.INCREMENTAL


def run_info(claim: Claim, settings: Settings, known: Known) -> RunInfo:
    return RunInfo(
        session=claim.session,
        pipeline_id=claim.pipeline_id,
        installation=known.installation,
        taken_over=claim.taken_over,
        full_run=is_full_run(claim),
        show_keys=settings.show_keys_in_errors,
        log_fields=claim.log_fields(),
    )


def build_sink(definition: Definition, settings: Settings, run: RunInfo, lease: Lease, known: Known) -> Sink:
    """The sink alone, for work that does not read: the source is not checked."""
    target = connectors.check_target(definition.target_table, allowed_targets(settings))
    rejects = RejectPolicy(str(target), definition.options, show_keys=run.show_keys)
    return _build_sink(target, definition, settings, lease, run, rejects, known)


def prepare(
    checked: CheckedDefinition, *, allow_shrink: bool = False, full_run: bool = False, writes: bool = True
) -> Prepared:
    """The plan of a definition; ConfigError if source or target has a reason against it.

    Without `writes`, for a comparison or a preview, reasons against a write do not matter.
    """
    try:
        source = checked.source.describe()
        # the columns that transforms return are not known before they run
        target = checked.sink.describe(() if checked.tasks else source.columns)
        # guarantee: I17
        if full_run and source.filtered is not None:
            raise RequestRefused(f"a full run would not read the whole source: {source.filtered}", code="PARAM")
        # guarantee: M6
        found = [*target.findings, *unsupported(checked.definition, target)]
        _refuse_fatal([*(found if writes or not target.key else ()), *source.findings], target, full_run)
        return _planned(checked, source, target, allow_shrink=allow_shrink, full_run=full_run)
    except BaseException:
        checked.source.close()
        checked.sink.close()
        raise


def _refuse_fatal(findings: Iterable[Finding], target: TargetInfo, full_run: bool) -> None:
    fatal = [finding for finding in findings if finding.fatal]
    if fatal:
        # an incremental run may be possible where a full one is not
        group = RequestRefused if full_run else ConfigError
        if not (target.exists or target.key):
            group = RelationMissing  # the key is unknown because the target is missing, perhaps only for seconds
        raise group("; ".join(finding.text for finding in fatal), code=fatal[0].code)


def _planned(
    checked: CheckedDefinition, source: SourceInfo, target: TargetInfo, *, allow_shrink: bool, full_run: bool
) -> Prepared:
    definition, options = checked.definition, checked.definition.options
    order = _order(definition, target.key)
    types = _types_of(order, source.columns)
    names = [column.name for column in source.columns]
    if options.delete_column is not None and not checked.tasks and options.delete_column not in names:
        raise ConfigError(
            f"options.delete_column '{options.delete_column}' is not a column of the source, which has:"
            f" {', '.join(names)}",
            code="DELETE_COLUMN",
        )
    cursor_types = ", ".join(f"{name} {types[name]}" for name in order)
    read_lane, lane, steps = _route(checked, source.lanes, target.lanes, target.key)
    plan = Plan(
        source=checked.source,
        sink=checked.sink,
        transforms=steps,
        lane=read_lane,
        target=target,
        target_name=str(checked.target),
        incremental=definition.mode is Mode.INCREMENTAL,
        order=order,
        cursor_column=definition.incremental_key,
        cursor_types=cursor_types,
        fingerprint=_fingerprint(checked, source, target.key, cursor_types),
        user_code=bool(checked.tasks),
        reads_user_code=source.user_code,
        skip_null=options.on_null_cursor == "ignore",
        last_wins=options.on_duplicate_key == "last",
        full_run=full_run,
        max_staging_age=options.max_staging_age,
        max_delete_ratio=None if allow_shrink else options.max_delete_ratio,
        checks=definition.checks,
        marked_keys=_marked_keys(target.key) if options.drops_marked_rows and set(target.key) <= set(names) else None,
    )
    return Prepared(plan, source, lane)


def _marked_keys(key: tuple[str, ...]) -> MarkedKeys:
    from vitrine.plan.transforms import KeysOfRows  # most runs need no step

    return KeysOfRows(key)


def _order(definition: Definition, key: tuple[str, ...]) -> tuple[str, ...]:
    """The columns that order a read: the key, or the cursor and its tie-breaker."""
    if definition.mode is Mode.FULL:
        return key
    tie_breaker = definition.tie_breaker or (key[0] if len(key) == 1 else None)
    if definition.incremental_key is None or tie_breaker is None:
        raise ConfigError("an incremental pipeline needs incremental_key and incremental_id_key", code="CURSOR")
    return definition.incremental_key, tie_breaker


def _types_of(order: Sequence[str], columns: Sequence[Column]) -> dict[str, str]:
    types = {column.name: column.type for column in columns}
    if missing := [name for name in order if name not in types]:
        raise ConfigError(
            f"the source has no column '{missing[0]}', which the pipeline names as key or cursor; it has:"
            f" {', '.join(types)}",
            code="SCHEMA_CHANGED",
        )
    return types


def _fingerprint(checked: CheckedDefinition, source: SourceInfo, key: Sequence[str], cursor_types: str) -> str:
    """Equal while staged rows remain valid: the same query, transforms, columns, key, order and target."""
    columns = (f"{column.name} {column.type}" for column in source.columns)
    work = (source.fingerprint, *(task.fingerprint() for task in checked.tasks))
    options = checked.definition.options
    drops = (f"without {options.delete_column}",) if options.drops_marked_rows else ()
    parts = (*work, checked.definition.source, str(checked.target), *columns, *key, cursor_types, *drops)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _route(
    checked: CheckedDefinition, source: Sequence[Lane], sink: Sequence[Lane], key: tuple[str, ...]
) -> tuple[Lane, Lane, list[Transformer]]:
    """The lane in which rows are read, the one in which the sink receives them, and the steps between."""
    tasks, show_keys, options = checked.tasks, checked.show_keys, checked.definition.options
    drops = options.drops_marked_rows
    if not (tasks or drops) and (shared := [lane for lane in sink if lane in source]):
        return shared[0], shared[0], []
    from vitrine.plan.transforms import conversion, step_of  # most runs need no step

    first = Lane.FRAMES if tasks and tasks[0].task.kind is Kind.FRAME else Lane.ROWS
    read = next((lane for lane in (first, Lane.TEXT, Lane.ROWS, Lane.FRAMES) if lane in source), None)
    steps = [step_of(task, key, show_keys=show_keys) for task in tasks]
    last = (Lane.FRAMES if tasks[-1].task.kind is Kind.FRAME else Lane.ROWS) if tasks else read
    if drops and options.delete_column is not None:
        from vitrine.plan.transforms import drop_marked

        steps.append(drop_marked(options.delete_column, key))
    if last not in sink:
        last = next((lane for lane in sink if lane is not Lane.COPY), None)
        steps += [conversion(last)] if last else []
    if read is None or last is None:
        raise ConfigError(
            f"no lane connects the source ({', '.join(source)}) to the sink ({', '.join(sink)})", code="NO_LANE"
        )
    is_single_rows = any(task.task.kind is Kind.ROW for task in tasks)
    return read, Lane.ROWS if is_single_rows else last, steps
