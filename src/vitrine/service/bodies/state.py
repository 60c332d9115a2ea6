"""Bodies about the state of a pipeline's reads."""

from datetime import datetime
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from vitrine.pipeline import Pipeline
from vitrine.service.bodies.examples import example
from vitrine.store.state import StoredState


class StateBody(BaseModel):
    """The checkpoint of a pipeline, and its unfinished full load."""

    model_config = example(
        {
            "pipeline": "film_dim",
            "cursor": ["2025-01-01 11:59:00.123456+00", "8f2b3c1e-0d5a-4f0e-9a44-5f0c6a523a55"],
            "last_processed_value": "2025-01-01 11:59:00.123456+00",
            "last_processed_id": "8f2b3c1e-0d5a-4f0e-9a44-5f0c6a523a55",
            "pending_cursor": None,
            "pending_since": None,
            "generation": 0,
            "generation_open": False,
            "generation_cursor": None,
            "generation_rows": 0,
            "batch_seq": 7,
            "horizon_lag_seconds": 0.0,
            "horizon_blocker": None,
            "updated_at": "2025-01-01T12:00:00Z",
        }
    )

    pipeline: str
    cursor: tuple[str, ...] | None = Field(
        description="The target contains every row up to here; null before the first run."
    )
    last_processed_value: str | None
    last_processed_id: str | None = Field(description="null: the next run reads last_processed_value again.")
    pending_cursor: tuple[str, ...] | None = Field(description="Becomes the cursor once older transactions have ended.")
    pending_since: datetime | None
    generation: int = Field(description="Full loads started so far.")
    generation_open: bool = Field(description="A full load is unfinished.")
    generation_cursor: tuple[str, ...] | None
    generation_rows: int
    batch_seq: int
    horizon_lag_seconds: float | None = Field(
        description="Age of the oldest transaction open in the last incremental run; null when the run does not wait."
    )
    horizon_blocker: str | None = Field(
        description="The session whose transaction holds the checkpoint back for longer than `horizon_margin`, or null."
    )
    updated_at: datetime | None

    @classmethod
    def of(cls, pipeline: Pipeline, state: StoredState) -> Self:
        cursor = state.position.cursor or ()
        return cls(
            pipeline=pipeline.name,
            cursor=state.position.cursor,
            last_processed_value=cursor[0] if cursor else None,
            last_processed_id=cursor[1] if len(cursor) > 1 else None,
            pending_cursor=state.position.pending_cursor,
            pending_since=state.position.pending_since,
            generation=state.generation,
            generation_open=state.generation_open,
            generation_cursor=state.generation_cursor,
            generation_rows=state.generation_rows,
            batch_seq=state.batch_seq,
            horizon_lag_seconds=state.horizon_lag_seconds,
            horizon_blocker=state.horizon_blocker,
            updated_at=state.updated_at,
        )


class StateChange(BaseModel):
    """Where the next run reads from."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"action": "rewind", "value": "2025-01-01 00:00:00+00"}, {"action": "reset"}],
            "allOf": [
                {
                    "oneOf": [
                        {"properties": {"action": {"const": "reset"}, "value": {"type": "null"}}},
                        {
                            "required": ["value"],
                            "properties": {"action": {"const": "rewind"}, "value": {"type": "string"}},
                        },
                    ]
                }
            ],
        },
    )

    action: Literal["reset", "rewind"] = Field(
        description="reset: forget the checkpoint and an unfinished load; the next run reads everything. rewind: read"
        " again from the given value on, which is included."
    )
    value: str | None = Field(
        default=None,
        max_length=200,
        description="For rewind: a value of the cursor column in its own type, not after the present checkpoint.",
        examples=["2025-01-01 00:00:00+00"],
    )

    @model_validator(mode="after")
    def _value_belongs_to_rewind(self) -> Self:
        if (self.value is None) == (self.action == "rewind"):
            raise ValueError("give a value for rewind, and none for reset")
        return self
