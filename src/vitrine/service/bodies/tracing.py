"""Bodies of a trace: one key on its way from the source to the target."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StringConstraints

from vitrine.pipeline import Pipeline
from vitrine.service.bodies.checks import REJECT_EXAMPLE, RejectBody
from vitrine.service.bodies.examples import example
from vitrine.service.bodies.pipelines import printable
from vitrine.status import Status

if TYPE_CHECKING:
    from vitrine.engine.digests import Texts
    from vitrine.engine.standing import Verdict
    from vitrine.engine.tracing import Traced

MAX_VALUE = 10_000
"""Characters of a value that are shown."""

MAX_CHARACTERS = 1_000_000
"""Of all values together; each of very many is shown up to `MIN_VALUE`."""

MIN_VALUE = 100

MAX_KEY_COLUMNS = 32
MAX_KEY_LENGTH = 4000

KeyValue = Annotated[str, StringConstraints(max_length=MAX_KEY_LENGTH)]
KEY = "The values of the key columns, in their order."

Shown = dict[str, str | None]
"""A row: values in PostgreSQL's text format, null is NULL."""


class ResendBody(BaseModel):
    """One key that is to be read and written again."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"key": ["17"]}]})

    key: list[KeyValue] = Field(min_length=1, max_length=MAX_KEY_COLUMNS, description=KEY)
    delete: StrictBool = Field(
        default=False,
        description="Delete the key from the target if the source, after the transforms, does not have it. Otherwise"
        " such a key stays.",
    )


class ResentBody(BaseModel):
    """What a resend has done."""

    model_config = example(
        {"resent": 1, "deleted": 0, "standing": "equal", "sentence": "the row of analytics.film_dim equals the source"}
    )

    resent: int = Field(description="Rows of the key that were read again and passed to the target.")
    deleted: int = Field(description="1 if the key was deleted, because the source does not have it.")
    standing: str = Field(description="Where the row stands now, as in a trace.")
    sentence: str


class TracedStepBody(BaseModel):
    """What one transform has made of the row."""

    transform: str
    rows: list[Shown]
    error: str | None = Field(description="Why the transform failed; null: it did not.")


class TracedColumnBody(BaseModel):
    name: str
    differs: bool | None = Field(description="null: not compared, because one of the sides has no such column or row.")


_ROW = {"id": "17", "title": "Star Wars", "modified": "2025-01-01 11:59:00+00"}


class TraceBody(BaseModel):
    """Why a row of a mart is as it is."""

    model_config = example(
        {
            "pipeline": "film_dim",
            "target": "analytics.film_dim",
            "status": "IDLE",
            "waiting": None,
            "key_columns": ["id"],
            "key": ["17"],
            "standing": "cursor_not_moved",
            "sentence": "the row differs from analytics.film_dim in title, but the checkpoint has passed its"
            " 'modified': it changed without a new value there, or the target was changed by hand",
            "remedy": "no run reads it again: send this key with --resend, and let every change set 'modified'",
            "source": [_ROW],
            "steps": [],
            "target_rows": [_ROW | {"title": "Star Warts"}],
            "columns": [
                {"name": "id", "differs": False},
                {"name": "title", "differs": True},
                {"name": "modified", "differs": False},
            ],
            "reject": None,
            "cursor": ["2025-01-01 11:59:00+00", "17"],
            "checkpoint": ["2025-01-01 12:00:00+00", "99"],
            "not_compared": None,
            "shortened": [],
        }
    )

    pipeline: str
    target: str
    status: Status
    waiting: str | None = Field(description="Why nothing happens to the pipeline at the moment, as in its status.")
    key_columns: list[str]
    key: list[str] = Field(description="As the row has it; as it was given if there is none.")
    standing: str = Field(
        description="equal, waiting, blocked, quarantined, cursor_not_moved, missing, deleted_at_source, filtered,"
        " transform_fails, repeated, null_cursor or not_found."
    )
    sentence: str
    remedy: str | None = Field(description="null: there is nothing to do.")
    source: list[Shown] = Field(description="The rows of the source now, in PostgreSQL's text format; null is NULL.")
    steps: list[TracedStepBody] = Field(description="What each transform makes of them, in order.")
    target_rows: list[Shown] = Field(description="The rows or documents of the target now.")
    columns: list[TracedColumnBody] = Field(description="Every column of both sides.")
    reject: RejectBody | None = Field(
        description="The row in quarantine; null: it is not there.", examples=[REJECT_EXAMPLE]
    )
    cursor: list[str | None] | None = Field(description="Of the row; null: no row, or the pipeline has no checkpoint.")
    checkpoint: list[str] | None = Field(description="The target contains every row up to here; null: none.")
    not_compared: str | None = Field(
        description="Why values could only be compared by their texts: one does not fit the type of the target."
    )
    shortened: list[str] = Field(description=f"Columns with values of which at most {MAX_VALUE} characters are shown.")

    @classmethod
    def of(
        cls,
        pipeline: Pipeline,
        found: "Traced",
        verdict: "Verdict",
        *,
        waiting: str | None,
        reject: RejectBody | None,
        checkpoint: Sequence[str] | None,
    ) -> Self:
        rows = [*found.source, *found.target, *(row for step in found.steps for row in step.rows)]
        limit = max(MIN_VALUE, min(MAX_VALUE, MAX_CHARACTERS // max(1, sum(map(len, rows)))))
        steps = [
            TracedStepBody(transform=step.transform, rows=_shown(step.rows, limit), error=step.error)
            for step in found.steps
        ]
        return cls(
            pipeline=pipeline.name,
            target=found.facts.target,
            status=pipeline.status,
            waiting=waiting,
            key_columns=list(found.facts.key_columns),
            key=list(found.key),
            standing=verdict.standing,
            sentence=verdict.sentence,
            remedy=verdict.remedy,
            source=_shown(found.source, limit),
            steps=steps,
            target_rows=_shown(found.target, limit),
            columns=_columns(found),
            reject=reject,
            cursor=None if found.cursor is None else list(found.cursor),
            checkpoint=None if checkpoint is None else list(checkpoint),
            not_compared=found.not_compared,
            shortened=sorted({name for row in rows for name, text in row.items() if text and len(text) > limit}),
        )


def _columns(found: "Traced") -> list[TracedColumnBody]:
    rows: list[dict[str, Any]] = [*found.source, *(row for step in found.steps for row in step.rows), *found.target]
    names = dict.fromkeys(name for row in rows for name in row)
    is_compared = bool(found.produced and found.target)
    return [
        TracedColumnBody(
            name=name,
            differs=name in found.facts.differing if is_compared and name in found.compared else None,
        )
        for name in names
    ]


def _shown(rows: "Sequence[Texts]", limit: int) -> list[Shown]:
    return [{name: _value(text, limit) for name, text in row.items()} for row in rows]


def _value(text: str | None, limit: int) -> str | None:
    return text if text is None else printable(text if len(text) <= limit else f"{text[:limit]}…")
