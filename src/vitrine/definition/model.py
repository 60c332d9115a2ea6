"""The definition of a pipeline."""

from datetime import timedelta
from enum import StrEnum
from functools import cache, lru_cache
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    SerializeAsAny,
    StrictBool,
    StrictFloat,
    StrictInt,
    TypeAdapter,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema

from vitrine.core import schedule
from vitrine.core.checks import MOST_CHECKS, Check, refuse_repeated_names
from vitrine.core.schedule import Schedule
from vitrine.definition import connectors
from vitrine.settings import DURATION, LONGEST, parse_duration

NAME = r"^[a-z][a-z0-9_]{0,62}$"

StateChoice = Literal["keep", "reset"]
"""What becomes of the checkpoint when the query changes."""
TAG = r"^[a-z0-9][a-z0-9_.:-]{0,62}$"
COLUMN = r"^[A-Za-z_][A-Za-z0-9_$]{0,62}$"

PYTHON_READER = "python"
"""The connector for registered readers."""


class Mode(StrEnum):
    FULL = "full"
    INCREMENTAL = "incremental"


class TaskType(StrEnum):
    SQL = "SQL"
    PYTHON = "PYTHON"


@lru_cache(maxsize=1024)  # a list of pipelines has each default once per pipeline
def format_duration(value: timedelta) -> str:
    """The shortest spelling that `parse_duration` reads back: 90s, 5m, 1h."""
    seconds = value.total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + "s"


def _duration(value: object) -> timedelta:
    """Whole seconds, or a text with a unit."""
    if isinstance(value, bool | float) or (isinstance(value, str) and value != value.strip()):
        raise ValueError("give a duration such as 30s, 5m or 1h")
    return parse_duration(value)


Duration = Annotated[
    timedelta,
    BeforeValidator(
        _duration,
        json_schema_input_type=Annotated[str, Field(pattern=f"^{DURATION}$")]
        | Annotated[int, Field(ge=0, le=int(LONGEST.total_seconds()))],
    ),
    PlainSerializer(format_duration, return_type=str),
]


def readable_default(schema: dict[str, Any]) -> None:
    """The default of a Duration in a JSON schema, in the form that is accepted."""
    default = schema.get("default")
    if isinstance(default, str) and default.startswith("P"):  # ISO 8601, as pydantic writes it for input
        schema["default"] = format_duration(TypeAdapter(timedelta).validate_python(default))


Column = Annotated[str, Field(pattern=COLUMN)]
Tag = Annotated[str, Field(pattern=TAG)]
PipelineName = Annotated[str, Field(pattern=NAME)]
BatchSize = Annotated[int, Field(ge=1, le=50_000, strict=True)] | Literal["auto"]


class Options(BaseModel):
    """Options that every pipeline has; its source and its sink add their own. Every default is safe."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    control_column: Column | None = Field(
        default=None,
        description="Column whose minimum and maximum reconcile compares; default: the cursor, else the first key.",
    )
    on_null_cursor: Literal["fail", "ignore"] = Field(
        default="fail",
        description="Rows with NULL in incremental_key, which no cursor can reach: fail the run, or skip them.",
    )
    on_reject: Literal["fail", "quarantine"] = Field(
        default="fail", description="If a row does not fit the target: fail the run, or quarantine the row."
    )
    max_rejects: StrictInt = Field(
        default=100, ge=0, le=1_000_000, description="A run that quarantines more rows than this fails."
    )
    on_duplicate_key: Literal["fail", "last"] = Field(
        default="fail",
        description="If the source returns one key twice: fail the run, or keep the last row by incremental_key.",
    )
    on_schema_change: Literal["fail", "add_columns"] = Field(
        default="fail", description="If the query has a column that the target lacks: fail the run, or add the column."
    )
    max_delete_ratio: StrictFloat = Field(
        default=0.5,
        ge=0,
        le=1,
        description="The largest part of the mart that a full load or a repair may delete; a larger deletion fails the"
        " run.",
    )
    delete_mode: Literal["none", "soft_column", "reconcile_keys"] = Field(
        default="none",
        description="Rows that are deleted at the source, in mode incremental: `none` keeps them in the mart,"
        " `soft_column` follows a column that marks them, `reconcile_keys` compares the keys of both sides and deletes"
        " what vanished.",
    )
    delete_column: Column | None = Field(
        default=None,
        description="For `delete_mode: soft_column`: a row is deleted if this column is true, a number other than 0, or"
        " any other value that is not NULL, such as a time.",
    )
    on_soft_delete: Literal["delete", "mark"] = Field(
        default="delete",
        description="For `delete_mode: soft_column`: delete the row from the mart, or write it with its mark.",
    )
    delete_interval: Duration = Field(
        default=timedelta(0),
        json_schema_extra=readable_default,
        description="For `delete_mode: reconcile_keys`: a run compares the keys if the last comparison is older than"
        " this. 0s: every run does.",
    )
    reconcile_interval: Duration | None = Field(
        default=None,
        ge=timedelta(minutes=1),
        description="How often the mart is compared with its source down to the keys that differ, whenever the pipeline"
        " is IDLE. null: only by request.",
    )
    max_staging_age: Duration = Field(
        default=timedelta(hours=1),
        json_schema_extra=readable_default,
        description="An unfinished full load older than this starts from the beginning.",
    )
    batch_timeout: Duration = Field(
        default=timedelta(minutes=30),
        json_schema_extra=readable_default,
        ge=timedelta(seconds=1),
        description="The run fails if reading, transforming and writing one batch takes longer. The first batch"
        " includes the time that the source needs to sort the query.",
    )
    max_rows_per_second: StrictInt | None = Field(
        default=None,
        ge=1,
        le=1_000_000_000,
        description="Limit for the rows read per second; batches are then no larger than that. null: no limit.",
    )
    pause_between_batches: Duration = Field(
        default=timedelta(0),
        json_schema_extra=readable_default,
        description="How long a run waits after each batch, at most an hour.",
    )
    max_batch_bytes: StrictInt = Field(
        default=32 * 1024 * 1024,
        ge=1024,
        description="A batch ends at this size even if it has fewer rows than batch_size. With a row transform,"
        " and in lane `text`, the default is 8 MiB.",
    )

    freshness: Duration | None = Field(
        default=None,
        ge=timedelta(seconds=1),
        description="The mart is stale when it is older than this. null: when it is older than its schedule allows.",
    )

    @field_validator("pause_between_batches")
    @classmethod
    def _waits_at_most_an_hour(cls, value: timedelta) -> timedelta:
        if value > timedelta(hours=1):
            raise ValueError("give at most 1h; for longer pauses use schedule_interval")
        return value

    @model_validator(mode="after")
    def _delete_options_match(self) -> Self:
        if (self.delete_mode == "soft_column") is not (self.delete_column is not None):
            raise ValueError("give delete_mode: soft_column and delete_column together")
        if self.delete_interval and self.delete_mode != "reconcile_keys":
            raise ValueError("delete_interval needs delete_mode: reconcile_keys")
        return self

    @property
    def drops_marked_rows(self) -> bool:
        """Whether rows that are marked as deleted do not belong into the mart."""
        return self.delete_mode == "soft_column" and self.on_soft_delete == "delete"


class Step(BaseModel):
    """One step of a task plan: SQL reads, PYTHON transforms."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    order_index: StrictInt = Field(ge=0, le=1_000_000, examples=[10])
    task_type: TaskType
    body: str | None = Field(
        default=None,
        description="SQL: the query. PYTHON: the name of a registered transform.",
        examples=["audience_segment"],
    )
    source_table: str | None = Field(
        default=None,
        pattern=r"^[a-z_][a-z0-9_]{0,62}\.[a-z_][a-z0-9_]{0,62}$",
        description="SQL step: read this whole table instead of a body.",
    )
    target_table: str | None = Field(
        default=None, description="Last step only: where the rows go, instead of the pipeline's target_table."
    )
    options: dict[str, Any] = Field(default_factory=dict)


class Definition(BaseModel):
    """A pipeline as the user writes it, in JSON or YAML."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=NAME, description="Unique; lower-case letters, digits and _.", examples=["top_genres"])
    description: str = Field(default="", max_length=2000)
    owner: str = Field(
        default="", max_length=200, description="The person or team that is responsible.", examples=["team-search"]
    )
    tags: tuple[Tag, ...] = Field(
        default=(),
        max_length=20,
        description="Names that group pipelines, each once; lower-case letters, digits, _, ., : and -.",
        examples=[["search", "tier-1"]],
    )
    type: TaskType | None = Field(
        default=None, description="SQL or PYTHON; derived from the steps. Refused if it contradicts them."
    )
    source_type: str = Field(
        default="postgres", pattern=NAME, description="Name of the connector that reads.", examples=["postgres"]
    )
    source: str = Field(default="default", pattern=NAME, description="Name of a configured connection.")
    source_query: str | None = Field(
        default=None,
        description="One SELECT over allowed schemas; $1 is the checkpoint.",
        examples=["SELECT g.id, g.name, count(*) AS films FROM content.genre g GROUP BY g.id, g.name"],
    )
    python_task: str | None = Field(default=None, description="Shorthand for one PYTHON step after source_query.")
    target_table: str = Field(
        description="Where the rows go: analytics.<table>, or <scheme>:<name> of another connector.",
        examples=["analytics.top_genres"],
    )
    mode: Mode = Mode.FULL
    incremental_key: Column | None = Field(default=None, examples=["modified"])
    incremental_id_key: Column | None = Field(default=None, description="Breaks ties of incremental_key; unique.")
    key_columns: tuple[Column, ...] = Field(
        default=(), description="Default: the target's primary key. Required when the target does not exist yet."
    )
    batch_size: BatchSize = Field(
        default="auto",
        description="Rows per transaction, 1 to 50 000. auto: 50 000 without a transform, 20 000 with a"
        " frame transform and 5 000 with a row transform.",
    )
    enabled: StrictBool = True
    schedule_interval: str | None = Field(
        default=None,
        description="An interval such as 30s, 5m or 1h, or a cron line of five fields in the configured time zone.",
        examples=["5m", "*/15 6-22 * * MON-FRI"],
    )
    after: tuple[PipelineName, ...] = Field(
        default=(),
        max_length=50,
        description="Names of pipelines, each once: a run starts when all of them have succeeded since it last did.",
        examples=[["film_dim", "film_rating_agg"]],
    )
    tasks: tuple[Step, ...] = Field(default=(), description="Task plan; takes precedence over source_query.")
    checks: tuple[Check, ...] = Field(
        default=(),
        max_length=MOST_CHECKS,
        description="Rules that rows must obey before readers see them.",
        examples=[[{"type": "not_null", "columns": ["title"]}]],
    )
    # after the fields that determine which options exist
    options: SerializeAsAny[Options] = Field(default=Options(), validate_default=True)

    @field_validator("source_query")
    @classmethod
    def _strip(cls, value: str | None) -> str | None:
        return value.strip() if value is not None else None

    @field_validator("tags")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError("give each tag once")
        return value

    @field_validator("after")
    @classmethod
    def _in_order(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        """Sorted: their order has no meaning, and the store keeps none."""
        if len(set(value)) < len(value):
            raise ValueError("give each pipeline once")
        if info.data.get("name") in value:
            raise ValueError("a pipeline cannot run after itself; remove its own name")
        return tuple(sorted(value))

    @field_validator("checks")
    @classmethod
    def _each_named_once(cls, value: tuple[Check, ...]) -> tuple[Check, ...]:
        refuse_repeated_names(value)
        return value

    @field_validator("schedule_interval")
    @classmethod
    def _interval(cls, value: str | None) -> str | None:
        if value is not None:
            schedule.parse(value)
        return value

    @field_validator("options", mode="before")
    @classmethod
    def _options_of_connectors(cls, value: Any, info: ValidationInfo) -> Any:
        """Validated against the common options and those of the pipeline's two connectors."""
        types = _types(info.data.get("tasks", ()), info.data.get("source_query"), info.data.get("python_task"))
        reads = _reading_connector(types, info.data.get("source_type", ""))
        given = value.model_dump(exclude_unset=True) if isinstance(value, Options) else value
        target = _effective_target(info.data.get("tasks", ()), info.data.get("target_table", ""))
        model = connectors.options_model(Options, reads, target)
        return _default_options(model) if given == {} else model.model_validate(given)

    @model_validator(mode="after")
    def _type_is_derived(self) -> Self:
        types = _types(self.tasks, self.source_query, self.python_task)
        if self.type is not None and types and self.type not in types:
            raise ValueError(f"type {self.type} contradicts the steps, of which none is {self.type}; remove type")
        # frozen for all other code: the stored type is always the one of the steps
        object.__setattr__(self, "type", TaskType.PYTHON if TaskType.PYTHON in types else TaskType.SQL)
        return self

    @model_validator(mode="after")
    def _last_step_overrides_the_target(self) -> Self:
        # every rule, message and list uses target_table, so it is always the target that is written
        object.__setattr__(self, "target_table", _effective_target(self.tasks, self.target_table))
        return self

    @model_validator(mode="after")
    def _cursor_matches_mode(self) -> Self:
        if self.mode is Mode.INCREMENTAL and self.incremental_key is None:
            raise ValueError("mode incremental needs incremental_key, the column that grows with every change")
        if self.mode is Mode.INCREMENTAL and self.tie_breaker is None:
            raise ValueError("mode incremental needs incremental_id_key, the unique column that breaks ties")
        if self.mode is Mode.FULL and self.options.delete_mode == "reconcile_keys":
            raise ValueError("delete_mode: reconcile_keys is for mode incremental; a full load deletes what vanished")
        return self

    @property
    def steps(self) -> tuple[Step, ...]:
        """The task plan in order; source_query and python_task are its short form."""
        return _steps(self.tasks, self.source_query, self.python_task)

    @property
    def query(self) -> str | None:
        """The query to read; None if a registered reader reads."""
        first = next(iter(self.steps), None)
        if first is None or first.task_type is not TaskType.SQL:
            return None
        return first.body or (f"SELECT * FROM {first.source_table}" if first.source_table else None)  # noqa: S608

    @property
    def reader(self) -> Step | None:
        """The step that names a registered reader; None if a query reads."""
        first = next(iter(self.steps), None)
        return first if first is not None and first.task_type is TaskType.PYTHON else None

    @property
    def transform_steps(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps[1:] if step.task_type is TaskType.PYTHON)

    @property
    def source_connector(self) -> str:
        """Name of the connector that reads: registered readers have their own."""
        return _reading_connector(_types(self.tasks, self.source_query, self.python_task), self.source_type)

    @property
    def tie_breaker(self) -> str | None:
        """The second cursor column: as configured, or the key if it has one column."""
        if self.incremental_id_key is None and len(self.key_columns) == 1:
            return self.key_columns[0]
        return self.incremental_id_key

    @property
    def schedule(self) -> Schedule | None:
        return schedule.parse(self.schedule_interval) if self.schedule_interval else None

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Adds the options of connectors to the schema."""
        schema = handler(core)
        resolved = handler.resolve_ref_schema(schema)
        common = handler.resolve_ref_schema(resolved["properties"]["options"])
        describe_connector_options(resolved, common)
        return schema


@cache
def _default_options(model: type[BaseModel]) -> BaseModel:
    return model()


def _steps(tasks: tuple[Step, ...], source_query: str | None, python_task: str | None) -> tuple[Step, ...]:
    if tasks:
        return _ordered(tasks)
    reading = (Step(order_index=0, task_type=TaskType.SQL, body=source_query),) if source_query else ()
    python = (Step(order_index=1, task_type=TaskType.PYTHON, body=python_task),) if python_task else ()
    return (*reading, *python)


def _ordered(tasks: tuple[Step, ...]) -> tuple[Step, ...]:
    return tuple(sorted(tasks, key=lambda step: step.order_index))


def _types(tasks: tuple[Step, ...], source_query: str | None, python_task: str | None) -> tuple[TaskType, ...]:
    """The types of the steps in order."""
    if tasks:
        return tuple(step.task_type for step in _ordered(tasks))
    return (*((TaskType.SQL,) if source_query else ()), *((TaskType.PYTHON,) if python_task else ()))


def _effective_target(tasks: tuple[Step, ...], target_table: str) -> str:
    return (_ordered(tasks)[-1].target_table if tasks else None) or target_table


def _reading_connector(types: tuple[TaskType, ...], source_type: str) -> str:
    return PYTHON_READER if types and types[0] is TaskType.PYTHON else source_type


def describe_connector_options(definition: dict[str, Any], options: dict[str, Any]) -> None:
    """Add the options of the installed connectors to a JSON schema, with the targets and sources they belong to."""
    # not those of the schema: it has the others already, where two models of one document share it
    common = list(Options.model_fields)
    rules: list[dict[str, Any]] = []
    # a step that names a target may make it one of another connector
    named = {"required": ["target_table"], "properties": {"target_table": {"type": "string"}}}
    overridden = {"required": ["tasks"], "properties": {"tasks": {"type": "array", "contains": named}}}
    sources: list[str] = []
    for connector in connectors.installed().values():
        if connector.source:
            properties = connector.source.options.model_json_schema().get("properties", {})
            options["properties"].update(properties)
            sources += properties
    for connector in connectors.installed().values():
        if connector.sink:
            properties = connector.sink.options.model_json_schema().get("properties", {})
            options["properties"].update(properties)
            matches = f"^{connector.sink.scheme}:" if connector.sink.scheme else "^[^:]*$"
            allowed = {"properties": {"options": {"propertyNames": {"enum": [*common, *sources, *properties]}}}}
            condition = {"properties": {"target_table": {"pattern": matches}}, "not": overridden}
            rules.append({"if": condition, "then": allowed})
    definition["allOf"] = rules


THROTTLE_OPTIONS = ("max_rows_per_second", "pause_between_batches")
"""What a reload changes in the current run, besides batch_size."""


def with_throttle_of(other: Definition, definition: Definition) -> Definition:
    """The definition with the throttle of another."""
    throttle = {name: getattr(other.options, name) for name in THROTTLE_OPTIONS}
    options = definition.options.model_copy(update=throttle)
    return definition.model_copy(update={"batch_size": other.batch_size, "options": options})
