"""PostgreSQL as a source, and as the sink of marts."""

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, Field, StrictBool, StrictInt
from pydantic_settings import NoDecode

from vitrine.definition.connectors import Connector, SinkSpec, SourceSpec
from vitrine.definition.model import Column, Duration, readable_default
from vitrine.settings import Bytes, ConnectorSettings, split_list


def _qualified(names: tuple[str, ...]) -> tuple[str, ...]:
    if any(name.count(".") != 1 or not all(name.partition(".")) for name in names):
        raise ValueError("give each relation as schema.name, such as content.films")
    return names


def _called(entries: tuple[str, ...]) -> tuple[str, ...]:
    if entries:
        # imported here, because the parser takes long to import
        from vitrine.sql.functions import parse_calls

        parse_calls(entries)
    return entries


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

    allowed_functions: Annotated[tuple[str, ...], NoDecode, BeforeValidator(split_list), AfterValidator(_called)] = (
        Field(
            default=(),
            validation_alias=AliasChoices(
                "VITRINE_ALLOWED_FUNCTIONS", "VITRINE_POSTGRES_ALLOWED_FUNCTIONS", "allowed_functions"
            ),
            description="Further functions that a source query may call, as schema.name/arguments, for example"
            " public.similarity/2.",
        )
    )
    plan_timeout: Duration = Field(
        default=timedelta(seconds=30),
        ge=timedelta(milliseconds=100),
        le=timedelta(days=1),
        validation_alias=AliasChoices("VITRINE_PLAN_TIMEOUT", "VITRINE_POSTGRES_PLAN_TIMEOUT", "plan_timeout"),
        description="How long the source may take to plan a query.",
    )
    first_row_timeout: Duration = Field(
        default=timedelta(minutes=30),
        ge=timedelta(milliseconds=100),
        le=timedelta(days=7),
        validation_alias=AliasChoices(
            "VITRINE_FIRST_ROW_TIMEOUT", "VITRINE_POSTGRES_FIRST_ROW_TIMEOUT", "first_row_timeout"
        ),
        description="How long the source may take until the first row of a query. A read that streams has no limit.",
    )
    temp_file_limit: Bytes = Field(
        default=10 * 1024**3,
        ge=1024**2,
        validation_alias=AliasChoices("VITRINE_TEMP_FILE_LIMIT", "VITRINE_POSTGRES_TEMP_FILE_LIMIT", "temp_file_limit"),
        description="Temporary files that a query at the source, or that of a check, may write, if the account may set"
        " temp_file_limit.",
    )
    max_result_bytes: Bytes = Field(
        default=100 * 1024**3,
        ge=1024**2,
        validation_alias=AliasChoices(
            "VITRINE_MAX_RESULT_BYTES", "VITRINE_POSTGRES_MAX_RESULT_BYTES", "max_result_bytes"
        ),
        description="How much one run may read from the source.",
    )
    max_row_bytes: Bytes = Field(
        default=64 * 1024**2,
        ge=1024,
        le=1024**3,
        validation_alias=AliasChoices("VITRINE_MAX_ROW_BYTES", "VITRINE_POSTGRES_MAX_ROW_BYTES", "max_row_bytes"),
        description="How large one row may be.",
    )


class PostgresSourceOptions(BaseModel):
    """Options of a pipeline that reads from PostgreSQL."""

    horizon_margin: Duration = Field(
        default=timedelta(seconds=60),
        json_schema_extra=readable_default,
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
    cursor_is_monotonic: StrictBool = Field(
        default=False, description="Set it if a text or uuid cursor always grows in commit order."
    )
    cursor_disorder: StrictInt = Field(
        default=0,
        ge=0,
        le=2**62,
        description="For an integer cursor whose numbers are assigned ahead, as by a sequence with CACHE: how many"
        " numbers below the highest one may still appear. Every run reads that many again.",
    )
    snapshot_max_age: Duration = Field(
        default=timedelta(minutes=10),
        json_schema_extra=readable_default,
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
    ignore_removed: StrictBool = Field(
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
    source=SourceSpec(
        "vitrine.connectors.postgres.source.source:PostgresSource",
        PostgresSourceOptions,
        tables="vitrine.connectors.postgres.diagnose:list_tables",
    ),
    sink=SinkSpec(
        "vitrine.connectors.postgres.sink.sink:PostgresSink",
        pattern=r"[a-z_][a-z0-9_]{0,62}\.[a-z_][a-z0-9_]{0,62}",
        grammar="schema.table in lower-case letters, digits and underscores",
        options=PostgresSinkOptions,
        reserved=r"(etl|information_schema|pg_[a-z0-9_]*)\.",
    ),
    diagnose="vitrine.connectors.postgres.diagnose:diagnose",
)
