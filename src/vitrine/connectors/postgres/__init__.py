"""PostgreSQL as a source, and as the sink of marts."""

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, Field
from pydantic_settings import NoDecode

from vitrine.model import Column, Duration
from vitrine.plugins import Connector, SinkSpec, SourceSpec
from vitrine.settings import ConnectorSettings, split_list


def _qualified(names: tuple[str, ...]) -> tuple[str, ...]:
    if any(name.count(".") != 1 or not all(name.partition(".")) for name in names):
        raise ValueError("give each relation as schema.name, such as content.films")
    return names


class PostgresSettings(ConnectorSettings):
    """Settings of the connector."""

    allowed_source_schemas: Annotated[tuple[str, ...], NoDecode, BeforeValidator(split_list)] = Field(
        default=("content", "ugc"),
        validation_alias=AliasChoices(
            "VITRINE_ALLOWED_SOURCE_SCHEMAS", "VITRINE_POSTGRES_ALLOWED_SOURCE_SCHEMAS", "allowed_source_schemas"
        ),
        description="Schemas that a source query may read.",
    )
    allowed_relations: Annotated[tuple[str, ...], NoDecode, BeforeValidator(split_list), AfterValidator(_qualified)] = (
        Field(
            default=(),
            validation_alias=AliasChoices(
                "VITRINE_ALLOWED_RELATIONS", "VITRINE_POSTGRES_ALLOWED_RELATIONS", "allowed_relations"
            ),
            description="Relations, as schema.name, that may be read with everything behind them: a view that shows"
            " another schema on purpose, a foreign table.",
        )
    )


class PostgresSourceOptions(BaseModel):
    """Options of a pipeline that reads from PostgreSQL."""

    horizon_margin: Duration = Field(
        default=timedelta(seconds=60),
        description="How far the checkpoint stays behind the oldest open transaction, to allow for clock skew.",
    )
    lookback: Duration | None = Field(
        default=None,
        description="For a source that hides its open transactions: every run reads this much time again.",
    )
    cursor_timezone: str | None = Field(
        default=None,
        description="Time zone of an incremental_key of type timestamp without time zone or date."
        " null: the TimeZone of the source database.",
    )
    cursor_is_monotonic: bool = Field(
        default=False, description="Set it if a text or uuid cursor always grows in commit order."
    )
    cursor_disorder: int = Field(
        default=0,
        ge=0,
        le=2**62,
        description="For an integer cursor whose numbers are assigned ahead, as by a sequence with CACHE: how many"
        " numbers below the highest one may still appear. Every run reads that many again.",
    )
    snapshot_max_age: Duration = Field(
        default=timedelta(minutes=10),
        description="A read reopens its snapshot after this long, so that vacuum can work.",
    )
    row_security: Literal["refuse", "respect"] = Field(
        default="refuse",
        description="Row-level security that would hide rows from the reader: `refuse` to run, or `respect` it.",
    )


class PostgresSinkOptions(BaseModel):
    """Options of a pipeline that writes to PostgreSQL."""

    touch_column: Column | None = Field(
        default=None, description="Target column that is set to the current time whenever its row is written."
    )
    ignore_removed: bool = Field(
        default=False,
        description="Continue if a column that earlier runs wrote is no longer read; its old values stay.",
    )
    on_target_trigger: Literal["fail", "warn"] = Field(
        default="fail",
        description="If a trigger of the target stores other values or fewer rows: fail the run, or log a warning.",
    )


connector = Connector(
    "postgres",
    settings=PostgresSettings,
    source=SourceSpec("vitrine.connectors.postgres.source.source:PostgresSource", PostgresSourceOptions),
    sink=SinkSpec(
        "vitrine.connectors.postgres.sink.sink:PostgresSink",
        pattern=r"[a-z_][a-z0-9_]{0,62}\.[a-z_][a-z0-9_]{0,62}",
        grammar="schema.table in lower-case letters, digits and underscores",
        options=PostgresSinkOptions,
        reserved=r"(etl|information_schema|pg_[a-z0-9_]*)\.",
    ),
)
