"""Creates and changes pipelines: checks the definition, then stores it together with its effect on the state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast
from uuid import UUID

from pydantic import ValidationError

from vitrine import input_errors
from vitrine.engine import plan
from vitrine.errors import ConfigError, TransitionRefused
from vitrine.model import Definition, Pipeline, with_throttle_of
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.status import LEASED
from vitrine.store import pipelines
from vitrine.store import state as states
from vitrine.store.database import transaction

StateChoice = Literal["keep", "reset"]

# What is read: a new query may continue from the checkpoint if the user requests it
QUERY = frozenset({"source_query", "python_task", "tasks", "source", "source_type"})
# What the checkpoint belongs to: it is not valid for another cursor, key or target
IDENTITY = frozenset({"target_table", "mode", "incremental_key", "incremental_id_key", "key_columns"})
FIXED_WHILE_RUNNING = QUERY | IDENTITY | {"state"}


def create(
    connection: Connection, settings: Settings, definition: Definition, pipeline_id: UUID | None = None
) -> Pipeline:
    """Store a new pipeline; ConfigError lists every reason for a refusal."""
    plan.check(definition, settings)
    return pipelines.create(connection, definition, pipeline_id, zone=settings.zone)


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
        old = pipelines.lock(connection, key)
        if expected_version is not None and expected_version != old.config_version:
            raise TransitionRefused(
                f"pipeline '{old.name}' is at version {old.config_version}, not {expected_version}; read it again",
                code="VERSION_CONFLICT",
            )
        new = merge(old.definition, fields)
        plan.check(new, settings)
        changed = changed_fields(old.definition, new)
        if not changed and state != "reset":
            return old
        _refuse_while_running(old, changed | {"state"} if state == "reset" else changed)
        stored = states.load(connection, old.id)
        if must_reset(changed, has_checkpoint=stored.has_checkpoint, state=state) or (
            changed & FIXED_WHILE_RUNNING and not stored.has_checkpoint  # a half-built load of the old definition
        ):
            states.reset(connection, old.id)
        return pipelines.update(connection, old.id, new, zone=settings.zone)


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
    return Definition.model_validate(merged)


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


def must_reset(changed: frozenset[str], *, has_checkpoint: bool, state: StateChoice | None) -> bool:
    """Whether to delete the checkpoint; ConfigError when the change needs a `state` that was not given."""
    if state == "reset" or not has_checkpoint:
        return state == "reset"
    if identity := changed & IDENTITY:
        raise ConfigError(
            f"the checkpoint belongs to the old {', '.join(sorted(identity))};"
            " give state: reset to read everything again",
            code="STATE_CHOICE",
        )
    if changed & QUERY and state is None:
        raise ConfigError(
            "the query changes but the pipeline has a checkpoint; give state: keep to continue from it, or"
            " state: reset to read everything again",
            code="STATE_CHOICE",
        )
    return False


def _refuse_while_running(pipeline: Pipeline, changed: frozenset[str]) -> None:
    if pipeline.status in LEASED and (fixed := changed & FIXED_WHILE_RUNNING):
        raise TransitionRefused(
            f"pipeline '{pipeline.name}' is {pipeline.status}; pause it before you change {', '.join(sorted(fixed))}",
            code="RUNNING",
        )


def apply_all(
    connection: Connection,
    settings: Settings,
    documents: Sequence[tuple[str, Mapping[str, Any]]],
    state: StateChoice | None,
) -> list[tuple[str, str]]:
    """Create or change a pipeline for every document, or for none: (name, created | changed | unchanged) of each.

    A document is (its origin, its fields); `id` is optional among them. One ConfigError lists all refusals.
    """
    reasons: list[str] = []
    outcomes: list[tuple[str, str]] = []
    with transaction(connection):
        stored = {pipeline.name: pipeline for pipeline in pipelines.list_page(connection, limit=100_000)}
        for origin, document in documents:
            fields = {name: value for name, value in document.items() if name != "id"}
            try:
                definition = Definition.model_validate(fields)
                old = stored.get(definition.name)
                if old is None:
                    create(connection, settings, definition, _pipeline_id(document))
                    outcomes.append((definition.name, "created"))
                elif old.definition == definition and state != "reset":
                    outcomes.append((definition.name, "unchanged"))
                else:
                    change(connection, settings, old.id, definition.model_dump(mode="json"), state=state)
                    outcomes.append((definition.name, "changed"))
            except ValidationError as exc:
                mistakes = input_errors.explain(exc.errors(), Definition)
                reasons += [f"{origin}: {mistake.sentence}" for mistake in mistakes]
            except (ConfigError, TransitionRefused) as exc:
                reasons.append(f"{origin}: {exc}")
        if reasons:
            raise ConfigError("nothing was applied:\n  " + "\n  ".join(reasons), code="NOT_APPLIED")
    return outcomes


def _pipeline_id(document: Mapping[str, Any]) -> UUID | None:
    """None: the store assigns one."""
    try:
        return UUID(str(document["id"])) if document.get("id") else None
    except ValueError as exc:
        raise ConfigError("id: give the UUID of an exported pipeline, or remove the field", code="INVALID") from exc
