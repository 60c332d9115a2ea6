"""Rows of the table of pipelines as values, and definitions as columns."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

from psycopg.rows import DictRow
from psycopg.types.json import Jsonb
from pydantic import ValidationError

from vitrine import input_errors
from vitrine.errors import StoredDefinitionInvalid
from vitrine.ids import PipelineId, RequestId
from vitrine.model import Definition
from vitrine.pipeline import AppliedFile, LastError, Pipeline, Verification
from vitrine.requests import RequestKind, RunOptions, RunRequest
from vitrine.status import Status

AUTO_BATCH_SIZE = 5000
"""How `auto` is stored, unless batch_size_exact is set: earlier releases use this number as batch size."""


class Invalid(NamedTuple):
    """A pipeline whose stored definition is not valid: written without validation, or by a release that allowed it."""

    id: PipelineId
    name: str
    status: Status
    config_version: int
    lease_owner: str | None
    fields: Mapping[str, Any]  # of the definition, as `plain_fields` has them
    reason: str  # every wrong field, with what it should be
    file: AppliedFile | None = None  # None: no file manages the definition

    def error(self) -> StoredDefinitionInvalid:
        return StoredDefinitionInvalid(
            f"the stored definition of '{self.name}' is not valid ({self.reason}); apply a valid one with `vitrine"
            " apply`, or delete the pipeline"
        )


Stored = Pipeline | Invalid


def columns(definition: Definition) -> dict[str, Any]:
    columns = definition.model_dump(exclude={"tasks", "options", "checks", "after"})
    options = definition.options.model_dump(mode="json", exclude_defaults=True)
    automatic = definition.batch_size == "auto"
    return {
        **columns,
        "batch_size": AUTO_BATCH_SIZE if automatic else definition.batch_size,
        "batch_size_exact": not automatic,
        "key_columns": list(definition.key_columns),
        "tags": list(definition.tags),
        "checks": Jsonb([check.model_dump(mode="json", exclude_defaults=True) for check in definition.checks]),
        "options": Jsonb(options),
    }


_DEFINITION_FIELDS: Sequence[str] = tuple(name for name in Definition.model_fields if name != "type")


def plain_fields(definition: Definition) -> dict[str, Any]:
    """A definition as JSON has it, without the options that have their default."""
    options = definition.options.model_dump(mode="json", exclude_defaults=True)
    return definition.model_dump(mode="json", exclude={"type", "options"}) | {"options": options}


def of_row(row: DictRow) -> Pipeline:
    """ConfigError if the stored definition is not valid."""
    stored = read_row(row)
    if isinstance(stored, Invalid):
        raise stored.error()
    return stored


def read_row(row: DictRow) -> Stored:
    fields = {name: row[name] for name in _DEFINITION_FIELDS}
    if row["batch_size"] == AUTO_BATCH_SIZE and not row["batch_size_exact"]:
        fields["batch_size"] = "auto"
    try:
        return _of_row(row, Definition.model_validate(fields))
    except ValidationError as exc:
        return Invalid(
            id=row["id"],
            name=row["name"],
            status=Status(row["status"]),
            config_version=row["config_version"],
            lease_owner=row["lease_owner"],
            fields=fields,
            reason="; ".join(error.sentence for error in input_errors.explain(exc.errors(), schema=_schema())),
            file=_file(row),
        )


@cache
def _schema() -> input_errors.Schema:
    return input_errors.schema_of(Definition)


def _of_row(row: DictRow, definition: Definition) -> Pipeline:
    return Pipeline(
        id=row["id"],
        definition=definition,
        status=Status(row["status"]),
        config_version=row["config_version"],
        request=_request(row["request_id"], row["requested_kind"], row["requested_options"]),
        rerun=_request(row["rerun_request_id"], row["rerun_kind"], row["rerun_options"]),
        rerun_held=row["rerun_held"],
        requested_at=row["requested_at"],
        attempt=row["attempt"],
        next_attempt_at=row["next_attempt_at"],
        next_due_at=row["next_due_at"],
        postponed=row["postponed"],
        last_error=_last_error(row),
        fresh_as_of=row["fresh_as_of"],
        verification=Verification(row["verified_until"], row["verdict"], row["verdict_at"]),
        lease_owner=row["lease_owner"],
        lease_expires_at=row["lease_expires_at"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        status_since=row["status_since"],
        read_at=row.get("read_at", row["updated_at"]),
        file=_file(row),
    )


def _file(row: DictRow) -> AppliedFile | None:
    name = row["file_name"]
    return None if name is None else AppliedFile(name, row["file_applied_at"], row["file_differs"])


def _last_error(row: DictRow) -> LastError | None:
    code = row["last_error_code"]
    return None if code is None else LastError(code, row["last_error_message"] or "", row["last_error_at"])


_OPTIONS = frozenset(field.name for field in fields(RunOptions))


def _request(request_id: UUID | None, kind: str | None, options: Mapping[str, Any] | None) -> RunRequest | None:
    """A stored request; options that only a newer release knows are left out."""
    if request_id is None:
        return None
    known = {name: value for name, value in (options or {}).items() if name in _OPTIONS}
    return RunRequest(RequestId(request_id), kind or RequestKind.RUN, RunOptions(**known))
