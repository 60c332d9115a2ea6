"""Creates and changes pipelines: checks the definition, then stores it together with its effect on the state."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast
from uuid import UUID

from psycopg import Rollback
from pydantic import ValidationError

from vitrine.core.rows import bare_type
from vitrine.core.status import LEASED
from vitrine.definition.model import Definition, Mode, StateChoice, with_throttle_of
from vitrine.definition.pipeline import Pipeline
from vitrine.definition.yaml import Document
from vitrine.errors import ConfigError, DataError, TransitionRefused
from vitrine.plan import planner
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import history, pipelines, schedules
from vitrine.store.database import transaction
from vitrine.store.pipelines import Invalid, Stored
from vitrine.store.state import StoredState, forget_generations, load_state, parse_cursor, reset_state, rewind_state

# What is read: a new query may continue from the checkpoint if the user requests it
QUERY = frozenset({"source_query", "python_task", "tasks", "source", "source_type"})
# What the checkpoint belongs to: it is not valid for another cursor, key or target
IDENTITY = frozenset({"target_table", "mode", "incremental_key", "incremental_id_key", "key_columns"})
FIXED_WHILE_RUNNING = QUERY | IDENTITY | {"state"}


def create(
    connection: Connection, settings: Settings, definition: Definition, pipeline_id: UUID | None = None
) -> Pipeline:
    """Store a new pipeline; ConfigError lists every reason for a refusal."""
    with transaction(connection):
        if definition.after:
            schedules.lock_chains(connection)
            schedules.refuse_missing(connection, definition.after)
        created = _create(connection, settings, definition, pipeline_id)
        return _chained(connection, created, definition.after)


def _create(connection: Connection, settings: Settings, definition: Definition, pipeline_id: UUID | None) -> Pipeline:
    """The same without its chain."""
    planner.check(definition, settings)
    return pipelines.create(connection, definition, pipeline_id, zone=settings.zone)


def _chained(connection: Connection, pipeline: Pipeline, after: Sequence[str]) -> Pipeline:
    """The pipeline, once its chain is stored."""
    if pipeline.definition.after == tuple(after):
        return pipeline
    schedules.set_upstreams(connection, {pipeline.id: after})
    return pipelines.get(connection, pipeline.id)


def change(
    connection: Connection,
    settings: Settings,
    key: str | UUID,
    fields: Mapping[str, Any],
    *,
    state: StateChoice | None = None,
    expected_version: int | None = None,
) -> Pipeline:
    """Change some fields of a pipeline together with its state, or change nothing."""
    with transaction(connection):
        lock_chains(connection, fields)
        old = pipelines.lock(connection, key)
        pipelines.refuse_other_version(old.name, old.config_version, expected_version)
        new = merge(old.definition, fields)
        if new.after != old.definition.after:
            schedules.refuse_missing(connection, new.after)
        return _chained(connection, _store(connection, settings, old, new, state), new.after)


def lock_chains(connection: Connection, fields: Mapping[str, Any]) -> None:
    """Before a pipeline is locked whose chain these fields may change."""
    # guarantee: L4
    if "after" in fields:
        schedules.lock_chains(connection)


def _store(
    connection: Connection, settings: Settings, old: Stored, new: Definition, state: StateChoice | None
) -> Pipeline:
    """Store a definition with its effect on the state, without its chain; the old one need not be valid."""
    revision = _revise(connection, settings, old, new, state)
    if revision is None:
        return pipelines.get(connection, old.id)
    if revision.resets:
        reset_state(connection, old.id)
    if revision.is_another_mart:
        forget_generations(connection, old.id)
    if revision.is_other_work:
        history.forget_verdict(connection, old.id)
    return pipelines.update(connection, old.id, new, zone=settings.zone)


def work_changed_by(
    connection: Connection,
    settings: Settings,
    key: str | UUID,
    fields: Mapping[str, Any],
    *,
    state: StateChoice | None = None,
    expected_version: int | None = None,
) -> Definition | None:
    """The definition that `change` would store, if source or target may judge it otherwise than the old one.

    Refuses what `change` refuses, so that they are not asked in vain.
    """
    old = pipelines.get(connection, key)
    pipelines.refuse_other_version(old.name, old.config_version, expected_version)
    new = merge(old.definition, fields)
    revision = _revise(connection, settings, old, new, state)
    return new if revision and changes_the_work(old.definition, new) else None


@dataclass(frozen=True)
class _Revision:
    resets: bool
    is_another_mart: bool  # what was published before does not belong to it
    is_other_work: bool  # what was proven about the mart does not concern it


def _revise(
    connection: Connection, settings: Settings, old: Stored, new: Definition, state: StateChoice | None
) -> _Revision | None:
    """What a new definition does to the state; None if it changes nothing."""
    changed = _changed_since(old, new)
    if not only_disables(changed, new):
        planner.check(new, settings)
    if not changed and state != "reset":
        return None
    stored = load_state(connection, old.id)
    # what the caller must decide comes first: the end of the run would not change it
    resets = _resets(changed, stored.has_checkpoint, state)
    _refuse_while_running(old, changed | {"state"} if state == "reset" else changed)
    return _Revision(resets, bool(changed & IDENTITY), bool(changed & (QUERY | IDENTITY)))


def _resets(changed: frozenset[str], has_checkpoint: bool, state: StateChoice | None) -> bool:
    """ConfigError when the change needs a `state` that was not given."""
    # without a checkpoint, there may be a half-built load of the old definition
    is_other_work = bool(changed & FIXED_WHILE_RUNNING) and not has_checkpoint
    return must_reset(changed, has_checkpoint=has_checkpoint, state=state) or is_other_work


@dataclass(frozen=True)
class StateEffect:
    """What a new definition does to the state once it is stored."""

    resets: bool
    choices: tuple[StateChoice, ...] = ()  # one of them must be given; empty: none
    reason: str | None = None  # why one must be given


def state_effect(
    old: Definition, new: Definition, *, has_checkpoint: bool, state: StateChoice | None = None
) -> StateEffect:
    changed = changed_fields(old, new)
    try:
        return StateEffect(_resets(changed, has_checkpoint, state))
    except ConfigError as exc:
        return StateEffect(False, ("reset",) if changed & IDENTITY else ("keep", "reset"), str(exc))


def _changed_since(old: Stored, new: Definition) -> frozenset[str]:
    if isinstance(old, Pipeline):
        return changed_fields(old.definition, new)
    # the fields that the checkpoint belongs to may be as before: often only an option is not valid any more
    fields = pipelines.plain_fields(new)
    return frozenset(name for name, value in fields.items() if value != old.fields[name])


def change_state(
    connection: Connection,
    key: str | UUID,
    *,
    rewind_to: str | None = None,
    expected_batch_seq: int | None = None,
) -> tuple[Pipeline, StoredState]:
    """Reset the state, or rewind the checkpoint to an earlier value of the cursor column, which is read again."""
    with transaction(connection):
        pipeline = pipelines.lock(connection, key)
        stored = load_state(connection, pipeline.id)
        # guarantee: D13
        if expected_batch_seq not in (None, stored.batch_seq):
            raise TransitionRefused(
                f"the state of '{pipeline.name}' is at version {stored.batch_seq}, not {expected_batch_seq}; read it"
                " again",
                code="VERSION_CONFLICT",
            )
        # guarantee: D12
        if pipeline.status in LEASED:
            raise TransitionRefused(
                f"pipeline '{pipeline.name}' is {pipeline.status} on {pipeline.lease_owner}; pause it before you change"
                " its state",
                code="RUNNING",
            )
        if rewind_to is None:
            reset_state(connection, pipeline.id)
        else:
            rewind_state(connection, pipeline.id, _earlier_cursor(connection, pipeline, stored, rewind_to))
        return pipeline, load_state(connection, pipeline.id)


def _earlier_cursor(connection: Connection, pipeline: Pipeline, stored: StoredState, value: str) -> str:
    """The canonical text of a value that the checkpoint may go back to; a refusal says why it may not."""
    current, types = stored.position.cursor, stored.cursor_types
    if pipeline.definition.mode is Mode.FULL or current is None or types is None:
        raise TransitionRefused(
            f"pipeline '{pipeline.name}' has no checkpoint to rewind: its next run reads everything",
            code="NO_CHECKPOINT",
        )
    if stored.generation_open:
        raise TransitionRefused(
            f"a full load of '{pipeline.name}' is unfinished, and its end sets the checkpoint again; let it finish, or"
            " reset the state",
            code="LOAD_UNFINISHED",
        )
    # `modified timestamp with time zone, id uuid`; a modifier such as (10,2) has no blank after its comma
    column, _, type_name = types.split(", ")[0].partition(" ")
    try:
        parsed = parse_cursor(connection, bare_type(type_name), value, current[0])
    except (DataError, ConfigError) as exc:
        raise ConfigError(
            f"the value is not a {type_name}, the type of the cursor column '{column}'", code="CURSOR_VALUE"
        ) from exc
    if parsed is None:
        raise ConfigError(
            f"the cursor column '{column}' is of type {type_name}, whose order is not known here; reset the state to"
            " read everything again",
            code="CURSOR_TYPE",
        )
    if not parsed.is_earlier:
        raise ConfigError(
            f"the value lies after the checkpoint, {current[0]}; rows between them would never be read. Give an earlier"
            " value",
            code="CURSOR_VALUE",
        )
    return parsed.text


@dataclass(frozen=True)
class Reload:
    """When the stored configuration takes effect."""

    pipeline: Pipeline
    running: bool
    waiting: tuple[str, ...]  # fields that changed since the run started; only the next run uses them


def reload(connection: Connection, key: str | UUID) -> Reload:
    """Let the current run use the stored throttle from its next batch; the next run uses the whole definition."""
    with transaction(connection):
        pipeline = pipelines.lock(connection, key)
        captured = pipelines.request_reload(connection, pipeline.id)
    if captured is None:
        return Reload(pipeline, running=False, waiting=())
    reloaded = with_throttle_of(pipeline.definition, captured)
    return Reload(pipeline, running=True, waiting=tuple(sorted(changed_fields(reloaded, pipeline.definition))))


def merge(definition: Definition, fields: Mapping[str, Any]) -> Definition:
    """The definition with these fields replaced (options one by one); ValidationError as for a new one."""
    # the type follows from the steps, which may change
    merged = definition.model_dump(mode="json", exclude={"type", "options"}) | dict(fields)
    given = fields.get("options", {})
    if isinstance(given, Mapping):
        merged["options"] = _kept_options(definition, merged) | dict(cast(Mapping[str, Any], given))
    new = Definition.model_validate(merged)
    _refuse_overridden_target(new, fields)
    return new


def _refuse_overridden_target(new: Definition, fields: Mapping[str, Any]) -> None:
    """ConfigError if only the pipeline's target is given, and its last step overrides it: nothing would change."""
    if "tasks" not in fields and fields.get("target_table", new.target_table) != new.target_table:
        raise ConfigError(
            f"step {new.steps[-1].order_index} has the target_table '{new.target_table}', which overrides that of the"
            " pipeline; change it in tasks",
            code="PLAN",
        )


def _kept_options(definition: Definition, merged: Mapping[str, Any]) -> dict[str, Any]:
    """Options that were set, without those of a connector that the merged definition no longer uses."""
    options = definition.options.model_dump(mode="json", exclude_defaults=True)
    try:
        known = type(Definition.model_validate({**merged, "options": {}}).options).model_fields
    except ValidationError:
        return options  # the merged definition is refused for other reasons
    return {name: value for name, value in options.items() if name in known}


def changed_fields(old: Definition, new: Definition) -> frozenset[str]:
    return frozenset(name for name in Definition.model_fields if getattr(old, name) != getattr(new, name))


def only_disables(changed: frozenset[str], new: Definition) -> bool:
    """Whether the change does nothing but disable: it is not refused if the settings no longer allow the rest."""
    return not new.enabled and changed <= {"enabled"}


def changes_the_work(old: Definition, new: Definition) -> bool:
    """Whether source or target may judge the new definition otherwise than the old one."""
    changed = changed_fields(with_throttle_of(new, old), new)
    return bool(changed & (QUERY | IDENTITY | {"checks", "options"}))


def must_reset(changed: frozenset[str], *, has_checkpoint: bool, state: StateChoice | None) -> bool:
    """Whether to delete the checkpoint; ConfigError when the change needs a `state` that was not given."""
    if state == "reset" or not has_checkpoint:
        return state == "reset"
    if identity := changed & IDENTITY:
        raise ConfigError(
            f"the checkpoint belongs to the old {', '.join(sorted(identity))}: read everything again with"
            ' `vitrine apply --state reset`, or with "state": "reset" in the request',
            code="STATE_CHOICE",
        )
    if changed & QUERY and state is None:
        raise ConfigError(
            "the query changes, but the pipeline has a checkpoint: continue from it with `vitrine apply --state keep`,"
            ' or read everything again with `--state reset`; in a request to the API, "state": "keep" or "reset"',
            code="STATE_CHOICE",
        )
    return False


def _refuse_while_running(pipeline: Stored, changed: frozenset[str]) -> None:
    if pipeline.status in LEASED and (fixed := changed & FIXED_WHILE_RUNNING):
        raise TransitionRefused(
            f"pipeline '{pipeline.name}' is {pipeline.status}; pause it before you change {', '.join(sorted(fixed))}",
            code="RUNNING",
        )


def new_work(connection: Connection, documents: Sequence[Document]) -> list[tuple[Document, Definition]]:
    """The documents that source and target have not judged yet; invalid ones are left out."""
    stored = {pipeline.name: pipeline for pipeline in pipelines.list_all(connection)}
    found: list[tuple[Document, Definition]] = []
    for document in documents:
        try:
            definition = document.definition
        except ValidationError:
            continue  # reported when the documents are applied
        old = stored.get(definition.name)
        if not isinstance(old, Pipeline) or changes_the_work(old.definition, definition):
            found.append((document, definition))
    return found


@dataclass(frozen=True)
class Difference:
    """A field that a document changes; None: the field has its default."""

    field: str
    old: Any
    new: Any


@dataclass(frozen=True)
class Applied:
    """What the documents do to one pipeline."""

    name: str
    outcome: Literal["created", "changed", "unchanged", "deleted"]
    differences: tuple[Difference, ...] = ()
    resets: bool = False  # the user asked for it
    old: Stored | None = None  # None: it did not exist
    new: Pipeline | None = None  # None: it does not exist any more
    drifted: bool = False  # the stored definition had been changed since it was applied from a file
    file: str | None = None  # the file that manages the pipeline from now on; None: no other than before


def apply_all(
    connection: Connection,
    settings: Settings,
    documents: Sequence[Document],
    state: StateChoice | None,
    *,
    refused: Sequence[str] = (),
    delete: Sequence[str] = (),
    dry_run: bool = False,
    mark: bool = False,
) -> list[Applied]:
    """Create or change a pipeline for every document and delete the named ones, or change nothing.

    One ConfigError lists all refusals, after those that are known already. A dry run makes every change and rolls it
    back, so that it is refused for the same reasons. With `mark`, the documents are files that manage the pipelines.
    """
    reasons = list(refused)
    applied: list[Applied] = []
    with transaction(connection):
        # one set after another: two that change the same pipelines in another order would deadlock
        schedules.lock_chains(connection)
        stored = {pipeline.name: pipeline for pipeline in pipelines.list_all(connection)}
        pipelines.lock_all(connection, _touched(documents, stored, delete, mark=mark))
        # their own chains are stored afterwards
        changing = {*delete, *(str(document.fields.get("name")) for document in documents)}
        # first, because a document may take over the target of a deleted pipeline
        for name in delete:
            try:
                pipelines.delete(connection, stored[name].id, besides=changing)
                applied.append(Applied(name, "deleted", old=stored[name]))
            except KeyError:
                continue  # another session has deleted it since it was listed
            except TransitionRefused as exc:
                reasons.append(str(exc))
        origins: dict[str, Document] = {}
        for document in documents:
            try:
                definition = document.definition
                if (other := origins.setdefault(definition.name, document)) is not document:
                    raise ConfigError(f"'{other.origin}' defines '{definition.name}', too", code="NAME_TAKEN")
                applied.append(_apply(connection, settings, document, stored.get(definition.name), state))
            except (ValidationError, ConfigError, TransitionRefused) as exc:
                reasons += document.mistakes(exc)
        remaining = stored.keys() - set(delete)
        reasons += _unknown_upstreams(origins.values(), remaining | origins.keys())
        if not reasons:
            try:
                applied = _apply_chains(connection, applied, origins)
            except ConfigError as exc:
                reasons.append(str(exc))
        if mark and not reasons:
            applied = _mark(connection, applied, origins)
        if reasons:
            raise ConfigError("nothing was applied:\n  " + "\n  ".join(reasons), code="NOT_APPLIED")
        if dry_run:
            raise Rollback
    return sorted(applied, key=lambda one: one.name)


def _touched(
    documents: Sequence[Document], stored: Mapping[str, Stored], delete: Sequence[str], *, mark: bool
) -> set[str]:
    """The pipelines that are deleted, changed or marked, and those that they run after."""
    names = set(delete)
    for document in documents:
        try:
            definition = document.definition
        except ValidationError:
            continue  # reported when the document is applied
        old = stored.get(definition.name)
        if not (isinstance(old, Pipeline) and old.definition == definition):
            names |= {definition.name, *definition.after}
        elif mark and not _is_marked(old, document):
            names.add(definition.name)
    return names


def _is_marked(pipeline: Pipeline, document: Document) -> bool:
    """Whether the stored definition is known to be the one of this file."""
    return pipeline.file is not None and pipeline.file.name == document.file and not pipeline.file.differs


def _mark(connection: Connection, applied: Sequence[Applied], documents: Mapping[str, Document]) -> list[Applied]:
    """Record which file manages each pipeline. A file that is applied again without a change writes nothing."""
    marked: list[Applied] = []
    rows: list[tuple[Pipeline, str]] = []
    for one in applied:
        if one.new is None or (one.outcome == "unchanged" and _is_marked(one.new, documents[one.name])):
            marked.append(one)
            continue
        document = documents[one.name]
        before = one.old.file if one.old else None
        rows.append((one.new, document.file))
        is_other = before is None or before.name != document.file
        marked.append(replace(one, file=document.file if is_other else None))
    if rows:
        pipelines.mark_file(connection, rows)
    return marked


def _apply(
    connection: Connection, settings: Settings, document: Document, old: Stored | None, state: StateChoice | None
) -> Applied:
    """What one document does, without its chain: it may name a pipeline that another document creates."""
    definition = document.definition
    if old is None:
        new = _create(connection, settings, definition, _pipeline_id(document.fields))
        return Applied(definition.name, "created", new=new)
    if isinstance(old, Pipeline) and old.definition == definition and state != "reset":
        return Applied(definition.name, "unchanged", old=old, new=old)
    new = _store(connection, settings, pipelines.lock_stored(connection, old.id), definition, state)
    changed = differences(old, definition)
    drifted = old.file is not None and old.file.differs
    return Applied(definition.name, "changed", changed, state == "reset", old, new, drifted)


def _unknown_upstreams(documents: Iterable[Document], known: Collection[str]) -> list[str]:
    """The documents that name a pipeline which neither exists nor is created together with them."""
    reasons: list[str] = []
    for document in documents:
        try:
            schedules.refuse_unknown(document.definition.after, known)
        except ConfigError as exc:
            reasons += document.mistakes(exc)
    return reasons


def _apply_chains(
    connection: Connection, applied: Sequence[Applied], documents: Mapping[str, Document]
) -> list[Applied]:
    """Store the chains of all documents together: their order does not matter; ConfigError if they form a cycle."""
    wanted = {
        one.new.id: documents[one.name].definition.after
        for one in applied
        if one.new is not None and one.new.definition.after != documents[one.name].definition.after
    }
    if not wanted:
        return list(applied)
    schedules.set_upstreams(connection, wanted)
    return [
        replace(one, new=pipelines.get(connection, one.new.id)) if one.new and one.new.id in wanted else one
        for one in applied
    ]


def differences(old: Stored | Definition, new: Stored | Definition) -> tuple[Difference, ...]:
    """Every field and option that has another value."""
    before, after = flat(old), flat(new)
    names = dict.fromkeys((*before, *after))
    return tuple(
        Difference(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)
    )


def flat(stored: Stored | Definition) -> dict[str, Any]:
    """Every field and option of the definition that has not its default."""
    if isinstance(stored, Invalid):
        defaults = pipelines.plain_fields(Definition(name="none", target_table="")) | {"name": None}
        fields = {name: value for name, value in stored.fields.items() if value != defaults[name]}
        options = fields.pop("options", {})
    else:
        definition = stored.definition if isinstance(stored, Pipeline) else stored
        fields = definition.model_dump(mode="json", exclude={"type", "options"}, exclude_defaults=True)
        options = definition.options.model_dump(mode="json", exclude_defaults=True)
    return fields | {f"options.{name}": value for name, value in options.items()}


def _pipeline_id(document: Mapping[str, Any]) -> UUID | None:
    """None: the store assigns one."""
    try:
        return UUID(str(document["id"])) if document.get("id") else None
    except ValueError as exc:
        raise ConfigError("id: give the UUID of an exported pipeline, or remove the field", code="INVALID") from exc
