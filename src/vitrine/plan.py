"""A definition becomes a flow.Plan, or is refused with reasons."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import ValidationError

from vitrine import policy, registry
from vitrine.errors import ConfigError, VitrineError
from vitrine.flow import Counts, Outcome, Plan
from vitrine.model import Claim, Definition, Mode, Step, TaskType
from vitrine.policy import ReadOnlySql, Target
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.sinks.postgres import FullLoad, PostgresWriter
from vitrine.sources.postgres import PostgresReader
from vitrine.store import checkpoints
from vitrine.store.checkpoints import PostgresState, State
from vitrine.transforms import TransformStep

Checked = TypeVar("Checked")


@dataclass(frozen=True)
class Design:
    """A definition that passed every check that needs no database."""

    query: ReadOnlySql
    target: Target
    tasks: tuple[str, ...]  # names of registered transforms, in order


def check(definition: Definition, settings: Settings) -> Design:
    """Every rule that needs no database; ConfigError tells all that are broken."""
    reasons: list[VitrineError] = []

    def attempt(rule: Callable[[], Checked]) -> Checked | None:
        try:
            return rule()
        except VitrineError as exc:
            reasons.append(exc)
            return None

    registry.transforms.load(settings.transform_modules)
    reasons += _contract(definition)
    tasks = tuple(_task_names(definition))
    for task in tasks:
        attempt(lambda task=task: registry.transforms.get(task))
    text = source_sql(definition)
    query = attempt(lambda: policy.read_only(text, settings.allowed_source_schemas)) if text else None
    target = attempt(lambda: policy.check_target(definition.target_table, settings.allowed_targets))
    attempt(lambda: settings.source_url(definition.source))
    if target is not None and target.kind != "postgres":
        reasons.append(
            ConfigError(f"target_table '{target}': only analytics.<table> can be written yet", code="TARGET")
        )
    if query is not None and query.uses_checkpoint and definition.mode is Mode.FULL:
        reasons.append(
            ConfigError("$1 is the checkpoint of an incremental pipeline; a full one has none", code="PARAM")
        )
    if reasons or query is None or target is None:
        raise ConfigError("; ".join(map(str, reasons)), code=reasons[0].code)
    return Design(query, target, tasks)


def source_sql(definition: Definition) -> str | None:
    """The query that reads: of the task plan's first step, otherwise source_query."""
    if not definition.tasks:
        return definition.source_query
    first = _ordered(definition)[0]
    if first.task_type is not TaskType.SQL:
        return None
    return first.body or (f"SELECT * FROM {first.source_table}" if first.source_table else None)  # noqa: S608


def sentences(exc: ValidationError) -> list[str]:
    """Pydantic's complaints as sentences that name the field."""
    return [_sentence(error["loc"], error["msg"]) for error in exc.errors()]


def _sentence(path: Sequence[int | str], message: str) -> str:
    field = ".".join(str(part) for part in path)
    reason = message.removeprefix("Value error, ")
    return f"{field}: {reason[:1].lower()}{reason[1:]}" if field else reason


def _ordered(definition: Definition) -> list[Step]:
    return sorted(definition.tasks, key=lambda step: step.order_index)


def _task_names(definition: Definition) -> Iterator[str]:
    if definition.tasks:
        for step in _ordered(definition):
            if step.task_type is TaskType.PYTHON and step.body:
                yield step.body
    elif definition.python_task:
        yield definition.python_task


def _contract(definition: Definition) -> list[VitrineError]:
    """The task plan's contract: SQL reads first, registered transforms follow, the target stands on the last."""
    if not definition.tasks:
        missing = "source_query is missing: say what to read, there or in tasks"
        return [] if definition.source_query else [ConfigError(missing, code="PLAN")]
    return [ConfigError(text, code="PLAN") for text in _violations(definition)]


def _violations(definition: Definition) -> Iterator[str]:
    ordered = _ordered(definition)
    indexes = [step.order_index for step in ordered]
    if len(set(indexes)) < len(indexes):
        yield "tasks: two steps have the same order_index"
    if ordered[0].task_type is not TaskType.SQL:
        yield "tasks: the first step must be of type SQL, for it reads"
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
        if step.target_table and step is not ordered[-1]:
            yield f"{place} has a target_table, which only the last step may have"
        if step.target_table and step is ordered[-1] and step.target_table != definition.target_table:
            yield f"{place} writes to '{step.target_table}', the pipeline to '{definition.target_table}'; say one"


@dataclass(frozen=True)
class PostgresPlan(Plan):
    """A plan from Postgres to Postgres."""

    reader: PostgresReader
    writer: PostgresWriter

    @property
    def lane(self) -> str:
        """How rows travel: undecoded, or as Python values."""
        return "rows" if self.transforms else "copy"


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
) -> Prepared:
    """Connect source and target as the claimed configuration says; every rule is checked again first."""
    definition = claim.definition
    design = check(definition, settings)
    full = definition.mode is Mode.FULL
    open_rejects = checkpoints.open_reject_keys(store, claim.pipeline_id)
    plan = _assemble(definition, settings, design, name=f"vitrine:{claim.token}", open_rejects=open_rejects)
    try:
        state = _open_load(claim, design, plan, store) if full else checkpoints.open_state(store, claim)
        manager = PostgresState(
            claim,
            state,
            fingerprint=plan.reader.cursor_types(),
            full=full,
            interruption=interruption,
            on_progress=on_progress,
        )
        return Prepared(plan, manager, plan.reader.rows_expected())
    except BaseException:
        plan.close()
        raise


def build_comparison(definition: Definition, settings: Settings) -> PostgresPlan:
    """Source and target of a definition, to look at and not to write."""
    return _assemble(definition, settings, check(definition, settings), name="vitrine:reconcile")


def _assemble(
    definition: Definition, settings: Settings, design: Design, *, name: str, open_rejects: Sequence[str] = ()
) -> PostgresPlan:
    writer = PostgresWriter(
        settings.store_url,
        design.target,
        key_columns=definition.key_columns,
        options=definition.options,
        open_rejects=open_rejects,
        name=name,
    )
    full = definition.mode is Mode.FULL
    try:
        reader = PostgresReader(
            settings.source_url(definition.source),
            design.query,
            writer.key if full else _incremental_cursor(definition, writer.key),
            incremental=not full,
            options=definition.options,
            name=name,
            decode=bool(design.tasks),
        )
    except BaseException:
        writer.close()
        raise
    transforms = [TransformStep(task, registry.transforms.get(task), writer.key) for task in design.tasks]
    return PostgresPlan(reader, writer, definition.batch_size, transforms)


def _open_load(claim: Claim, design: Design, plan: PostgresPlan, store: Connection) -> State:
    """Begin or continue a full load; staged rows are only good for the same query, columns, key and order."""
    definition = claim.definition
    columns = (f"{column.name} {column.type_name}" for column in plan.reader.columns)
    parts = (design.query.text, definition.source, str(design.target), *design.tasks, *columns, *plan.writer.key)
    fingerprint = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    state = checkpoints.open_generation(store, claim, fingerprint, definition.options.max_staging_age)
    plan.writer.begin_load(
        FullLoad(
            staging=checkpoints.staging_name(claim.pipeline_id, state.generation),
            fresh=state.generation_cursor is None,
            max_delete_ratio=definition.options.max_delete_ratio,
            allow_shrink=claim.options.allow_shrink,
        )
    )
    return state


def _incremental_cursor(definition: Definition, key: tuple[str, ...]) -> tuple[str, str]:
    """The columns that order an incremental read: what grows, and what breaks its ties."""
    tie_breaker = definition.tie_breaker or (key[0] if len(key) == 1 else None)
    if definition.incremental_key is None or tie_breaker is None:
        raise ConfigError("an incremental pipeline needs incremental_key and incremental_id_key", code="CURSOR")
    return definition.incremental_key, tie_breaker
