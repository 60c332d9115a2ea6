"""A definition becomes a flow.Plan, or is refused with reasons."""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from vitrine import policy, registry
from vitrine.errors import ConfigError, VitrineError
from vitrine.flow import Counts, Outcome, Plan, Position
from vitrine.model import Claim, Definition, Mode, Options, Step, TaskType
from vitrine.pace import Limits, Pace
from vitrine.policy import ReadOnlySql, Target
from vitrine.postgres import Connection
from vitrine.registry import BoundTask, Kind
from vitrine.settings import Settings
from vitrine.sinks.postgres import FullLoad, PostgresWriter
from vitrine.sources.postgres import PostgresReader
from vitrine.sources.python import PythonReader
from vitrine.store import checkpoints, rejects, staging
from vitrine.store.checkpoints import State
from vitrine.store.state import PostgresState
from vitrine.transforms import step_of

Checked = TypeVar("Checked")

ROWS_AT_ONCE = {"copy": 50_000, "frames": 20_000}
"""Rows of a batch unless batch_size says otherwise: few round trips, each page of an index visited once, and quick.

A frame is several times as large as its rows; where single rows are handled, they cost more than the round trips."""

BYTES_AT_ONCE = {"rows": 8 * 1024 * 1024}
"""The same for max_batch_bytes: a row is many times as large in Python as in its text."""


@dataclass(frozen=True)
class Design:
    """A definition that passed every check that needs no database."""

    source: ReadOnlySql | BoundTask  # a query, or a registered reader
    target: Target
    tasks: tuple[BoundTask, ...]  # registered transforms, in order

    def fingerprint(self) -> tuple[str, ...]:
        """What is read, and what is done with it."""
        source = self.source.text if isinstance(self.source, ReadOnlySql) else self.source.fingerprint()
        return source, *(task.fingerprint() for task in self.tasks)


def check(definition: Definition, settings: Settings) -> Design:
    """Every rule that needs no database; ConfigError tells all that are broken."""
    reasons: list[VitrineError] = []

    def attempt(rule: Callable[[], Checked]) -> Checked | None:
        try:
            return rule()
        except VitrineError as exc:
            reasons.append(exc)
            return None

    registry.load(settings.transform_modules)
    reasons += _contract(definition)
    reader = _reader_step(definition)
    bound = attempt(lambda: _bind(reader, registry.readers)) if reader and not _is_transform(reader) else None
    tasks = [attempt(lambda step=step: _bind(step, registry.transforms)) for step in _transform_steps(definition)]
    text = source_sql(definition)
    query = attempt(lambda: policy.read_only(text, settings.allowed_source_schemas)) if text else None
    target = attempt(lambda: policy.check_target(definition.target_table, settings.allowed_targets))
    if reader is None:
        attempt(lambda: settings.source_url(definition.source))
    if target is not None and target.kind != "postgres":
        reasons.append(
            ConfigError(f"target_table '{target}': only analytics.<table> can be written yet", code="TARGET")
        )
    if query is not None and query.uses_checkpoint and definition.mode is Mode.FULL:
        reasons.append(
            ConfigError("$1 is the checkpoint of an incremental pipeline; a full one has none", code="PARAM")
        )
    source = query or bound
    if reasons or source is None or target is None:
        raise ConfigError("; ".join(map(str, reasons)), code=reasons[0].code)
    return Design(source, target, tuple(task for task in tasks if task is not None))


def source_sql(definition: Definition) -> str | None:
    """The query that reads: of the task plan's first step, otherwise source_query."""
    if not definition.tasks:
        return definition.source_query
    first = _ordered(definition)[0]
    if first.task_type is not TaskType.SQL:
        return None
    return first.body or (f"SELECT * FROM {first.source_table}" if first.source_table else None)  # noqa: S608


def _ordered(definition: Definition) -> list[Step]:
    return sorted(definition.tasks, key=lambda step: step.order_index)


def _transform_steps(definition: Definition) -> list[Step]:
    if definition.tasks:
        steps = [step for step in _ordered(definition) if step.task_type is TaskType.PYTHON and step.body]
        return [step for step in steps if step is not _reader_step(definition)]
    return [_short_step(definition)] if definition.source_query and definition.python_task else []


def _reader_step(definition: Definition) -> Step | None:
    """The step that names a registered reader: the first of the plan, or python_task where there is no query."""
    if definition.tasks:
        first = _ordered(definition)[0]
        return first if first.task_type is TaskType.PYTHON and first.body else None
    return _short_step(definition) if definition.python_task and not definition.source_query else None


def _is_transform(step: Step) -> bool:
    return step.body in registry.transforms.names()


def _short_step(definition: Definition) -> Step:
    return Step(order_index=0, task_type=TaskType.PYTHON, body=definition.python_task)


def _bind(step: Step, installed: registry.Registry) -> BoundTask:
    """The registered task of a step, with its options; ConfigError where either is not right."""
    task = installed.get((step.body or "").strip())
    if task.kind is Kind.FRAME and not registry.has_frames():
        raise ConfigError(
            f"transform '{task.name}' works on frames and needs polars: pip install 'vitrine-etl[frames]'",
            code="EXTRA_MISSING",
        )
    return task.validate(step.options)


def _contract(definition: Definition) -> list[VitrineError]:
    """The task plan's contract: one step reads, registered transforms follow, the target stands on the last."""
    if not definition.tasks:
        missing = "source_query is missing: say what to read, there, in tasks, or with a reader as python_task"
        reader = _reader_step(definition)
        reads = definition.source_query or (reader is not None and not _is_transform(reader))
        return [] if reads else [ConfigError(missing, code="PLAN")]
    return [ConfigError(text, code="PLAN") for text in _violations(definition)]


def _violations(definition: Definition) -> Iterator[str]:
    ordered = _ordered(definition)
    indexes = [step.order_index for step in ordered]
    if len(set(indexes)) < len(indexes):
        yield "tasks: two steps have the same order_index"
    if ordered[0].task_type is TaskType.PYTHON and _is_transform(ordered[0]):
        yield "tasks: the first step must be SQL, or name a registered reader, for it reads"
    for step in ordered:
        place = f"tasks: step {step.order_index}"
        if step.task_type is TaskType.SQL and step is not ordered[0]:
            yield f"{place} is SQL, but only the first step reads; the others are PYTHON"
        if not (step.body or "").strip() and not (step.task_type is TaskType.SQL and step.source_table):
            yield f"{place} has no body"
        if step.task_type is TaskType.PYTHON and step.source_table:
            yield f"{place} has a source_table, which only the SQL step may have"
        if step.task_type is TaskType.SQL and step.source_table and step.body:
            yield f"{place} has both a body and a source_table; keep one"
        if step.task_type is TaskType.SQL and step.options:
            yield f"{place} is SQL, which takes no options"
        if step.target_table and step is not ordered[-1]:
            yield f"{place} has a target_table, which only the last step may have"
        if step.target_table and step is ordered[-1] and step.target_table != definition.target_table:
            yield f"{place} writes to '{step.target_table}', the pipeline to '{definition.target_table}'; say one"


@dataclass(frozen=True)
class PostgresPlan(Plan):
    """A plan from Postgres, or from a registered reader, to Postgres."""

    reader: PostgresReader | PythonReader
    writer: PostgresWriter
    lane: str = field(kw_only=True)  # how rows travel: copy (nobody looks inside), frames, or rows

    def go_at(self, definition: Definition) -> None:
        """Keep to the pace of this definition from the next batch on."""
        size, options = _rows_at_once(definition, self.lane), definition.options
        self.pace.limits = Limits(size, options.max_rows_per_second, options.pause_between_batches)


@dataclass(frozen=True)
class Prepared:
    """Everything one run needs: the plan, its state, and how many rows to expect."""

    plan: PostgresPlan
    state: PostgresState
    rows_expected: int | None


def build(
    claim: Claim,
    settings: Settings,
    store: Connection,
    *,
    interruption: Callable[[], Outcome | None],
    on_progress: Callable[[Counts], None],
    on_all_read: Callable[[], None] = lambda: None,
    on_reload: Callable[[int | None], None] = lambda version: None,
    rest: Callable[[float], Outcome | None] = time.sleep,
) -> Prepared:
    """Connect source and target as the claimed configuration says; every rule is checked again first."""
    definition = claim.definition
    design = check(definition, settings)
    open_rejects = rejects.open_keys(store, claim.pipeline_id)
    plan = _assemble(
        definition,
        settings,
        design,
        name=f"vitrine:{claim.token}",
        open_rejects=open_rejects,
        log_fields=claim.log_fields(),
    )
    try:
        state = _open_changes(claim, plan, store) if definition.mode is Mode.INCREMENTAL else None
        loads = state is None
        if state is None:
            state = _open_load(claim, design, plan, store)
        manager = PostgresState(
            claim,
            state,
            fingerprint=plan.reader.cursor_types(),
            full=loads,
            interruption=interruption,
            on_progress=on_progress,
            settled_part=plan.reader.lower if definition.mode is Mode.INCREMENTAL else None,
            on_all_read=on_all_read,
            on_reload=on_reload,
            rest=rest,
        )
        return Prepared(plan, manager, plan.reader.rows_expected())
    except BaseException:
        plan.close()
        raise


def build_catch_up(claim: Claim, settings: Settings, store: Connection, done: Prepared) -> Prepared | None:
    """What changed while a full load was read, from the horizon of its first snapshot; None without a time cursor."""
    definition = claim.definition
    since = done.state.generation_horizon
    if definition.mode is not Mode.FULL or definition.incremental_key is None or since is None:
        return None
    # rows without a time came with the load; the whole key breaks ties, as no checkpoint is made of it
    ignoring = definition.options.model_copy(update={"on_null_cursor": "ignore"})
    follows = definition.model_copy(update={"mode": Mode.INCREMENTAL, "options": ignoring})
    plan = _assemble(
        follows,
        settings,
        check(follows, settings),
        name=f"vitrine:{claim.token}",
        open_rejects=rejects.open_keys(store, claim.pipeline_id),
        cursor=(definition.incremental_key, *done.plan.writer.key),
        log_fields=claim.log_fields(),
        pace=done.plan.pace,  # the same, so that a change of it reaches this part of the run too
    )
    return Prepared(plan, done.state.follow(Position((since,))), None)


def build_comparison(definition: Definition, settings: Settings) -> PostgresPlan:
    """Source and target of a definition, to look at and not to write."""
    return _assemble(definition, settings, check(definition, settings), name="vitrine:reconcile")


def _assemble(
    definition: Definition,
    settings: Settings,
    design: Design,
    *,
    name: str,
    open_rejects: Sequence[str] = (),
    cursor: tuple[str, ...] | None = None,
    log_fields: Mapping[str, object] | None = None,
    pace: Pace | None = None,
) -> PostgresPlan:
    writer = PostgresWriter(
        settings.store_url,
        design.target,
        key_columns=definition.key_columns,
        newest_by=[name for name in (definition.incremental_key, definition.tie_breaker) if name],
        options=definition.options,
        open_rejects=open_rejects,
        name=name,
    )
    try:
        ordered_by = cursor or _cursor(definition, writer.key)
        reader = _reader(definition, settings, design, ordered_by, name=name, log_fields=log_fields)
    except BaseException:
        writer.close()
        raise
    steps = [step_of(task, writer.key) for task in design.tasks]
    moving = PostgresPlan(reader, writer, pace or Pace(Limits(definition.batch_size)), steps, lane=_lane(design))
    moving.go_at(definition)
    return moving


def _reader(
    definition: Definition,
    settings: Settings,
    design: Design,
    cursor: tuple[str, ...],
    *,
    name: str,
    log_fields: Mapping[str, object] | None,
) -> PostgresReader | PythonReader:
    if isinstance(design.source, BoundTask):
        return PythonReader(design.source, cursor)
    return PostgresReader(
        settings.source_url(definition.source),
        design.source,
        cursor,
        incremental=definition.mode is Mode.INCREMENTAL,
        options=_reading_options(definition, _lane(design)),
        name=name,
        as_text=bool(design.tasks),
        log_fields=log_fields,
    )


def _rows_at_once(definition: Definition, lane: str) -> int:
    """As said; where nothing was said, as many as the lane carries well."""
    unsaid = definition.batch_size == Definition.model_fields["batch_size"].default
    return ROWS_AT_ONCE.get(lane, definition.batch_size) if unsaid else definition.batch_size


def _reading_options(definition: Definition, lane: str) -> Options:
    options = definition.options
    if lane not in BYTES_AT_ONCE or options.max_batch_bytes != Options.model_fields["max_batch_bytes"].default:
        return options
    return options.model_copy(update={"max_batch_bytes": BYTES_AT_ONCE[lane]})


def _lane(design: Design) -> str:
    kinds = {task.task.kind for task in design.tasks}
    if isinstance(design.source, BoundTask) or Kind.ROW in kinds:
        return "rows"
    return "frames" if kinds else "copy"


def _open_changes(claim: Claim, plan: PostgresPlan, store: Connection) -> State | None:
    """The state to read changes from; None where everything is to be loaded first, as no mart is there to change.

    Changes are looked up in the mart row by row, which a load into staging spares. It needs a time to go on from.
    """
    state = checkpoints.open_state(store, claim)
    if state.has_checkpoint and not plan.writer.exists:
        raise ConfigError(
            f"target {claim.definition.target_table} is gone, and what was read before is not read again; restore the"
            " table, or reset the state to build it anew",
            code="TARGET_SCHEMA",
        )
    if not plan.writer.exists and _settled_time(claim, plan) is not None:
        return None
    if state.generation_open:  # somebody made the table while it was being loaded
        checkpoints.reset(store, claim.pipeline_id)
        state = checkpoints.open_state(store, claim)
    return state


def _settled_time(claim: Claim, plan: PostgresPlan) -> str | None:
    column = claim.definition.incremental_key
    return plan.reader.time_bound(column) if column else None


def _open_load(claim: Claim, design: Design, plan: PostgresPlan, store: Connection) -> State:
    """Begin or continue a load; staged rows are only good for the same query, columns, key and order."""
    definition = claim.definition
    columns = (f"{column.name} {column.type_name}" for column in plan.reader.columns)
    order = (*plan.writer.key, plan.reader.cursor_types())
    parts = (*design.fingerprint(), definition.source, str(design.target), *columns, *order)
    fingerprint = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    state = checkpoints.open_generation(
        store,
        claim,
        fingerprint,
        max_staging_age=definition.options.max_staging_age,
        horizon=_settled_time(claim, plan),
    )
    # in the order of the key no row should come twice; in that of time, one that changes meanwhile does
    in_time = definition.mode is Mode.INCREMENTAL
    last_wins = definition.options.on_duplicate_key == "last"
    plan.reader.begin_load()
    plan.writer.begin_load(
        FullLoad(
            staging=staging.name_of(claim.pipeline_id, state.generation),
            fresh=state.generation_cursor is None,
            max_delete_ratio=definition.options.max_delete_ratio,
            allow_shrink=claim.options.allow_shrink,
            keyed_last=in_time or last_wins,
            may_repeat=lambda: (
                last_wins or (in_time and (state.generation_cursor is not None or plan.reader.snapshots > 1))
            ),
        )
    )
    return state


def _cursor(definition: Definition, key: tuple[str, ...]) -> tuple[str, ...]:
    """The columns that order a read: the key, or what grows and what breaks its ties."""
    if definition.mode is Mode.FULL:
        return key
    tie_breaker = definition.tie_breaker or (key[0] if len(key) == 1 else None)
    if definition.incremental_key is None or tie_breaker is None:
        raise ConfigError("an incremental pipeline needs incremental_key and incremental_id_key", code="CURSOR")
    return definition.incremental_key, tie_breaker
