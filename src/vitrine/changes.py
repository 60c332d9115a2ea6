"""A definition is created or changed: checked first, then stored together with what it means for the state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from pydantic import ValidationError

from vitrine import plan
from vitrine.errors import ConfigError, TransitionRefused
from vitrine.model import Definition, Pipeline, with_pace_of
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.status import LEASED
from vitrine.store import checkpoints, pipelines
from vitrine.store.database import transaction

StateChoice = Literal["keep", "reset"]

# What reading means: another query may still continue from the checkpoint, if its author says so
QUERY = frozenset({"source_query", "python_task", "tasks", "source"})
# Where reading stands: a checkpoint of another cursor, key or target means nothing
IDENTITY = frozenset({"target_table", "mode", "incremental_key", "incremental_id_key", "key_columns"})
TEARING = QUERY | IDENTITY | {"state"}


def create(
    connection: Connection, settings: Settings, definition: Definition, pipeline_id: UUID | None = None
) -> Pipeline:
    """Store a new pipeline; ConfigError lists every reason against it."""
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
    """Change some fields of a pipeline, and its state with them, or nothing at all."""
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
        _refuse_tearing(old, changed | {"state"} if state == "reset" else changed)
        known = checkpoints.load(connection, old.id)
        if must_reset(changed, has_checkpoint=known.has_checkpoint, state=state) or (
            changed & TEARING and not known.has_checkpoint  # a half-built load of the old definition
        ):
            checkpoints.reset(connection, old.id)
        return pipelines.update(connection, old.id, new, zone=settings.zone)


@dataclass(frozen=True)
class Reload:
    """What becomes of a changed configuration while the pipeline may be running."""

    pipeline: Pipeline
    running: bool
    waiting: tuple[str, ...]  # fields that changed since the run began and are taken by the next one only


def reload(connection: Connection, key: str | UUID) -> Reload:
    """A run under way takes the stored pace at its next batch; where there is none, the next run takes everything."""
    with transaction(connection):
        pipeline = pipelines.lock(connection, key)
        captured = pipelines.request_reload(connection, pipeline.id)
    if captured is None:
        return Reload(pipeline, running=False, waiting=())
    keeps = with_pace_of(pipeline.definition, captured)
    return Reload(pipeline, running=True, waiting=tuple(sorted(changed_fields(keeps, pipeline.definition))))


def merge(definition: Definition, fields: Mapping[str, Any]) -> Definition:
    """The definition with these fields replaced (options one by one); ValidationError as for a new one."""
    merged = definition.model_dump(mode="json") | dict(fields)
    if isinstance(fields.get("options"), Mapping):
        merged["options"] = definition.options.model_dump(mode="json") | dict(fields["options"])
    return Definition.model_validate(merged)


def changed_fields(old: Definition, new: Definition) -> frozenset[str]:
    return frozenset(name for name in Definition.model_fields if getattr(old, name) != getattr(new, name))


def must_reset(changed: frozenset[str], *, has_checkpoint: bool, state: StateChoice | None) -> bool:
    """Whether the checkpoint goes; ConfigError where the change needs a word about it that was not said."""
    if state == "reset" or not has_checkpoint:
        return state == "reset"
    if identity := changed & IDENTITY:
        raise ConfigError(
            f"the checkpoint belongs to the old {', '.join(sorted(identity))}; say state: reset to read all again",
            code="STATE_CHOICE",
        )
    if changed & QUERY and state is None:
        raise ConfigError(
            "the query changes under an existing checkpoint; say state: keep to go on from it, or state: reset to read"
            " everything again",
            code="STATE_CHOICE",
        )
    return False


def _refuse_tearing(pipeline: Pipeline, changed: frozenset[str]) -> None:
    if pipeline.status in LEASED and (torn := changed & TEARING):
        raise TransitionRefused(
            f"pipeline '{pipeline.name}' is {pipeline.status}; changing {', '.join(sorted(torn))} would tear the run:"
            " pause it first",
            code="RUNNING",
        )


def apply_all(
    connection: Connection,
    settings: Settings,
    documents: Sequence[tuple[str, Mapping[str, Any]]],
    state: StateChoice | None,
) -> list[tuple[str, str]]:
    """Create or change every document, or none: (name, created | changed | unchanged) of each.

    A document is (where it came from, its fields, `id` among them at will). All refusals are told at once.
    """
    reasons: list[str] = []
    outcomes: list[tuple[str, str]] = []
    with transaction(connection):
        known = {pipeline.name: pipeline for pipeline in pipelines.list_page(connection, limit=100_000)}
        for origin, document in documents:
            fields = {name: value for name, value in document.items() if name != "id"}
            try:
                definition = Definition.model_validate(fields)
                old = known.get(definition.name)
                if old is None:
                    wanted = UUID(str(document["id"])) if document.get("id") else None
                    create(connection, settings, definition, wanted)
                    outcomes.append((definition.name, "created"))
                elif old.definition == definition and state != "reset":
                    outcomes.append((definition.name, "unchanged"))
                else:
                    change(connection, settings, old.id, definition.model_dump(mode="json"), state=state)
                    outcomes.append((definition.name, "changed"))
            except ValidationError as exc:
                reasons += [f"{origin}: {sentence}" for sentence in plan.sentences(exc)]
            except (ConfigError, TransitionRefused, ValueError) as exc:
                reasons.append(f"{origin}: {exc}")
        if reasons:
            raise ConfigError("nothing was applied:\n  " + "\n  ".join(reasons), code="NOT_APPLIED")
    return outcomes
