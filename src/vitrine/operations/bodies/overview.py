"""Bodies of what an installation is made of: figures, runners, lineage, sources, diagnosis."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from itertools import islice
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, Field

from vitrine.core.rows import TableKind
from vitrine.core.status import Status
from vitrine.definition.connectors import Diagnosis
from vitrine.definition.registry import Kind, Task, describe_options
from vitrine.operations.bodies.common import Mirror, example


class StateCounts(BaseModel):
    """How many pipelines are in each state."""

    pipelines: int = 0
    idle: int = 0
    run_requested: int = 0
    running: int = 0
    pause_requested: int = 0
    paused: int = 0
    failed: int = 0
    disabled: int = 0
    stale: int = 0


class GroupCounts(BaseModel):
    """How many pipelines an owner or a tag has, and their states."""

    name: str
    pipelines: int
    failed: int
    running: int
    stale: int


class RecentRunBody(Mirror):
    """What a small chart shows of a run."""

    id: int
    kind: str
    status: str
    started_at: datetime
    seconds: float
    rows_read: int
    rows_written: int


class HealthBody(Mirror):
    """Whether work proceeds."""

    runners: int = Field(description="Runner processes seen within the last 15 seconds.")
    waiting: int = Field(description="Requested pipelines, those that wait for a later attempt included.")
    oldest_wait: float | None = Field(description="Seconds since the oldest of those that could start was requested.")
    running: int
    held_pipeline: str | None = Field(description="Whose checkpoint waits longest for an open transaction.")
    horizon_lag: float | None
    horizon_blocker: str | None
    now: datetime


class TimelineEntry(BaseModel):
    """A run, or a change that was asked for."""

    at: datetime
    run: "TimelineRun | None" = Field(description="null: a change.")
    change: "TimelineChange | None" = Field(description="null: a run.")


class TimelineRun(BaseModel):
    """A run in short."""

    id: int
    kind: str
    trigger: str
    status: str
    finished_at: datetime | None
    seconds: float | None
    rows_read: int
    rows_written: int
    rows_deleted: int
    rows_rejected: int
    error_code: str | None
    error_message: str | None


class TimelineChange(Mirror):
    """A change in short: which fields it concerns, without their values, which only an administrator may read."""

    id: int
    actor: str
    via: str
    operation: str
    fields: list[str]


class TimelinePage(BaseModel):
    """Newest first."""

    items: list[TimelineEntry]
    next_run: int | None = Field(description="Give both for the next page; null: this source has no more entries.")
    next_change: int | None


class RunnerBody(Mirror):
    """A runner process."""

    name: str = Field(description="Host and process id.")
    started_at: datetime
    seen_at: datetime
    is_alive: bool = Field(description="Seen within the last 15 seconds. One that was killed is listed for a day.")


class LeaseBody(Mirror):
    """A pipeline that a runner holds."""

    pipeline: str
    status: str
    source: str
    runner: str
    expires_at: datetime = Field(description="Without a heartbeat until then, another runner takes the pipeline over.")
    heartbeat_at: datetime | None
    is_expired: bool
    run_id: int | None
    kind: str | None
    started_at: datetime | None
    rows_read: int | None
    rows_expected: int | None


class SourceBody(BaseModel):
    """A configured source, or one that a pipeline names."""

    name: str
    running: int
    waiting: int
    connections: int = Field(description="That the active runs may hold at most.")
    max_connections: int | None = Field(description="The limit over all runners; null: none is configured.")
    is_configured: bool


class RunnersBody(BaseModel):
    """Who works on what."""

    runners: list[RunnerBody]
    leases: list[LeaseBody]
    sources: list[SourceBody]
    is_cut: bool = Field(description="true: there are more than are shown.")


NodeKind = Literal["table", "reader", "pipeline"]
Trouble = Literal["failed", "late"]


class Node(NamedTuple):
    """A table, an index, a Python reader or a pipeline."""

    id: str
    kind: NodeKind
    name: str
    place: str = ""  # the source of a table, unless it is a table of the store's database
    enabled: bool = True


class State(NamedTuple):
    """Of a pipeline: what changes without a change of its definition."""

    status: Status = Status.IDLE
    trouble: Trouble | None = None  # of the pipeline itself


@cache
def state_of(status: Status, trouble: Trouble | None) -> State:
    """Ten thousand pipelines share a few of them."""
    return State(status, trouble)


USUAL = State()


class Cause(NamedTuple):
    """A failed or late pipeline before a node."""

    trouble: Trouble
    pipeline: str


@dataclass(frozen=True, eq=False)
class Topology:
    """Every node with those directly before and after it; kept while no definition changes. No two are equal."""

    nodes: Mapping[str, Node]
    before: Mapping[str, Sequence[str]]
    after: Mapping[str, Sequence[str]]
    by_name: Sequence[tuple[str, Node]]  # each with its name in lower case
    unread: int = 0  # pipelines whose query is not parsed yet
    is_cut: bool = False  # the store has more pipelines than are shown

    @classmethod
    def of(
        cls, nodes: Mapping[str, Node], edges: Iterable[tuple[str, str]], *, unread: int = 0, is_cut: bool = False
    ) -> "Topology":
        """`nodes`: by their ids."""
        before: dict[str, list[str]] = {id: [] for id in nodes}
        after: dict[str, list[str]] = {id: [] for id in nodes}
        for one, other in sorted(set(edges)):
            after[one].append(other)
            before[other].append(one)
        in_order = sorted(nodes.values(), key=lambda node: (node.name, node.kind))
        return cls(nodes, before, after, [(node.name.lower(), node) for node in in_order], unread, is_cut)


@dataclass(frozen=True)
class Graph:
    """A topology with the states of its pipelines."""

    topology: Topology
    states: Mapping[str, State]  # by the id of the node; pipelines that are idle and in time are left out
    # of nodes behind a failed or late pipeline, and of these pipelines themselves; follows from the others
    causes: Mapping[str, Cause] = field(compare=False)

    @classmethod
    def of(cls, topology: Topology, states: Mapping[str, State]) -> "Graph":
        return cls(topology, states, _causes(topology, states))

    @property
    def nodes(self) -> Mapping[str, Node]:
        return self.topology.nodes

    @property
    def before(self) -> Mapping[str, Sequence[str]]:
        return self.topology.before

    @property
    def after(self) -> Mapping[str, Sequence[str]]:
        return self.topology.after

    def state(self, id: str) -> State:
        return self.states.get(id, USUAL)

    def neighbours(self, id: str) -> list[str]:
        return [*self.before[id], *self.after[id]]

    def around(self, chosen: Iterable[str], *, limit: int) -> list[str]:
        """The chosen nodes and those one hop away, at most `limit`; nodes that do not exist are left out."""
        known = [id for id in chosen if id in self.nodes]
        found = dict.fromkeys(known[:limit])
        for id in known:
            for other in self.neighbours(id):
                if len(found) >= limit:
                    return list(found)
                found.setdefault(other)
        return list(found)

    def edges_between(self, ids: Iterable[str]) -> list[tuple[str, str]]:
        shown = dict.fromkeys(ids)
        return [(one, other) for one in shown for other in self.after[one] if other in shown]

    def search(self, text: str, *, limit: int) -> list[Node]:
        """Nodes whose names contain the text, those in trouble first."""
        wanted = text.lower()
        found = [node for name, node in self.topology.by_name if wanted in name]
        troubled = list(islice((node for node in found if node.id in self.causes), limit))
        others = islice((node for node in found if node.id not in self.causes), limit - len(troubled))
        return [*troubled, *others]


def _causes(topology: Topology, states: Mapping[str, State]) -> dict[str, Cause]:
    """What failed comes first: a node behind a failed and a late pipeline shows the failure."""
    found: dict[str, Cause] = {}
    for trouble in ("failed", "late"):
        # their own trouble first, then the nearest one
        sources = sorted(id for id, state in states.items() if state.trouble == trouble)
        pending = deque((id, Cause(trouble, topology.nodes[id].name)) for id in sources)
        while pending:
            id, cause = pending.popleft()
            if id in found:
                continue
            found[id] = cause
            pending.extend((other, cause) for other in topology.after[id])
    return found


TABLE_EXAMPLE: dict[str, Any] = {
    "schema": "content",
    "name": "film_work",
    "kind": "table",
    "rows": 1000,
    "columns": [
        {"name": "id", "type": "uuid", "nullable": False, "indexed": True},
        {"name": "title", "type": "text", "nullable": False, "indexed": False},
        {"name": "modified", "type": "timestamp with time zone", "nullable": False, "indexed": True},
    ],
    "key": ["id"],
    "cursors": [
        {
            "column": "modified",
            "type": "timestamp with time zone",
            "is_modification": True,
            "reasons": ["named like the time of a change", "indexed"],
        }
    ],
}


class TableColumnBody(Mirror):
    name: str
    type: str
    nullable: bool
    indexed: bool = Field(description="An index over all rows begins with it.")


class CursorBody(Mirror):
    """A column that may serve as incremental_key."""

    column: str
    type: str
    is_modification: bool = Field(description="By its name, a time that changes with every change of the row.")
    reasons: list[str] = Field(description="What speaks for it and against it.")


class TableBody(Mirror):
    """A table or view that pipelines may read."""

    model_config = example(TABLE_EXAMPLE)

    # `schema` is the name of a deprecated method of BaseModel
    schema_name: str = Field(alias="schema")
    name: str
    kind: TableKind
    rows: int | None = Field(description="Estimate of the source; null where it has none, as for views.")
    columns: list[TableColumnBody]
    key: list[str] = Field(description="Primary key, or a unique key without NULL; empty: neither.")
    cursors: list[CursorBody] = Field(description="Columns that may serve as incremental_key, the best first.")

    @property
    def full_name(self) -> str:
        return f"{self.schema_name}.{self.name}"


class TablePage(BaseModel):
    model_config = example({"source": "default", "items": [TABLE_EXAMPLE], "next": None})

    source: str
    items: list[TableBody]
    next: str | None = Field(description="Give it as `after` for the next page; null on the last page.")


TRANSFORM_EXAMPLE: dict[str, Any] = {
    "name": "rating_trend",
    "kind": "frame",
    "summary": "Adds the trend of each film.",
    "options": ["threshold: float = 0.5"],
    "origin": "vitrine",
}


class TransformBody(BaseModel):
    """A registered Python task."""

    model_config = example(TRANSFORM_EXAMPLE)

    name: str
    kind: Kind
    summary: str = Field(description="The first line of its documentation.")
    options: list[str] = Field(description="`name: type = default` of each option.")
    origin: str = Field(description="The distribution that contains it, or its module if there is none.")

    @classmethod
    def of(cls, task: Task) -> Self:
        return cls(
            name=task.name, kind=task.kind, summary=task.summary, options=describe_options(task), origin=task.origin
        )


class TransformList(BaseModel):
    model_config = example({"items": [TRANSFORM_EXAMPLE]})

    items: list[TransformBody]


Level = Literal["ok", "warning", "error"]


def of_definitions(invalid: Iterable[tuple[str, str]]) -> list[Diagnosis]:
    """The names of the pipelines whose stored definition is not valid, each with the reason."""
    remedy = "apply a valid definition with `vitrine apply`, or delete the pipeline"
    found = [Diagnosis("pipelines", "error", f"'{name}' is not valid: {reason}", remedy) for name, reason in invalid]
    return found or [Diagnosis("pipelines", "ok", "every stored definition is valid")]


class CheckBody(Mirror):
    subject: str
    level: Level
    text: str
    remedy: str | None = Field(description="How to mend it; null where nothing is wrong.")


class DoctorReport(BaseModel):
    healthy: bool = Field(description="No check ended with an error.")
    checks: list[CheckBody]

    @classmethod
    def of(cls, diagnoses: list[Diagnosis]) -> Self:
        checks = [CheckBody.of(one) for one in diagnoses]
        return cls(healthy=all(one.level != "error" for one in checks), checks=checks)
