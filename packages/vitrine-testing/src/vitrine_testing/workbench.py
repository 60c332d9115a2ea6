"""Pipelines of a sink under test, on the real store."""

import itertools
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from vitrine.core.loop import run_plan
from vitrine.core.protocols import Outcome
from vitrine.core.rows import Key
from vitrine.core.status import Event, RequestKind, RunOptions, RunStatus
from vitrine.definition.model import Definition, Mode
from vitrine.definition.pipeline import Claim
from vitrine.errors import LeaseLost, VitrineError
from vitrine.plan import planner
from vitrine.plan.backfill import roll_back
from vitrine.plan.planner import Known, Prepared
from vitrine.postgres import Connection
from vitrine.runner.jobs import JOBS
from vitrine.settings import Settings
from vitrine.store import checkpoint, history, pipelines, queue
from vitrine.store.checkpoint import StoreCheckpoint
from vitrine.store.database import Link
from vitrine.store.state import StoredState, load_state
from vitrine_testing.cases import SinkCase, Texts
from vitrine_testing.control import ScriptedControl
from vitrine_testing.lists import CONNECTOR, ListTable
from vitrine_testing.points import Points
from vitrine_testing.runs import Held, Tested

_numbers = itertools.count(1)

# Not while its row is locked: nothing takes a pipeline over before the transaction of its holder ends
_EXPIRE = """
    UPDATE etl.etl_pipelines SET lease_expires_at = clock_timestamp() - interval '1 s'
     WHERE id = (SELECT id FROM etl.etl_pipelines WHERE id = %s AND lease_token IS NOT NULL FOR UPDATE SKIP LOCKED)
"""


class StoredRun(Held):
    """A claim in the store, with the checkpoint that all attempts of its run share."""

    def __init__(self, bench: "Workbench", claim: Claim) -> None:
        self._bench = bench
        self._claim = claim
        # not under the name of a runner: the store does not end this session, so that the fence itself is tested
        self._store = Link(bench.settings.store_url, name="conformance")
        self.checkpoint = StoreCheckpoint(claim, self._store)

    def work(self, points: Points, control: ScriptedControl) -> bool:
        if self._claim.kind is RequestKind.ROLLBACK:
            self._roll_back(points, control)
            return False
        with self.prepared(control) as prepared:
            return run_plan(points.watch(prepared.plan), points.watch_checkpoint(self.checkpoint), control)

    def _roll_back(self, points: Points, control: ScriptedControl) -> None:
        connection, checkpoint = self._bench.connection, points.watch_checkpoint(self.checkpoint)
        roll_back(self._claim, self._bench.settings, connection, checkpoint, control, points.watch_sink)

    @contextmanager
    def prepared(self, control: ScriptedControl | None = None) -> Generator[Prepared]:
        """Source and sink, built as the executor builds them."""
        context = history.sink_facts(self._bench.connection, self._claim.pipeline_id)
        known = Known(context.installation, context.open_rejects, context.facts)
        prepared = planner.build(self._claim, self._bench.settings, control or ScriptedControl(), known)
        try:
            yield prepared
        finally:
            prepared.close()

    def leave(self, ended: Outcome | VitrineError) -> None:
        match ended:
            case Outcome.FINISHED:
                event, status = JOBS[self._claim.kind].finishes, RunStatus.SUCCESS
            case Outcome():
                event, status = Event.RELEASE, RunStatus.ABANDONED
            case _:
                event, status = Event.FAIL, RunStatus.FAILED
        if not isinstance(ended, LeaseLost):
            queue.end_run(self._bench.connection, self._claim, event, status)
        self.drop()

    def drop(self) -> None:
        self._store.drop()


class StoredPipeline(Tested):
    """A pipeline in the store."""

    def __init__(self, bench: "Workbench", definition: Definition, table: ListTable) -> None:
        self.id = pipelines.create(bench.connection, definition).id
        self.definition = definition
        self.target = definition.target_table
        self.table = table
        self.incremental = definition.mode is Mode.INCREMENTAL
        self.key = definition.key_columns
        self._bench = bench

    def rows(self) -> dict[Key, Texts]:
        return self._bench.case.rows(self.target)

    def claim(self, **options: bool) -> StoredRun:
        kind = RequestKind.FULL if self.asks_full else RequestKind.RUN
        wanted = RunOptions(allow_shrink=options.get("allow_shrink", False))
        pipelines.request_run(self._bench.connection, self.id, trigger="cli", kind=kind, options=wanted)
        return StoredRun(self._bench, self._next_claim())

    def claim_rollback(self) -> StoredRun:
        pipelines.request_run(self._bench.connection, self.id, trigger="cli", kind=RequestKind.ROLLBACK)
        return StoredRun(self._bench, self._next_claim())

    def take_over(self) -> StoredRun | None:
        connection = self._bench.connection
        connection.execute(_EXPIRE, [self.id])
        if self.id not in [row["id"] for row in queue.expire_leases(connection)]:
            return None
        return StoredRun(self._bench, replace(self._next_claim(), taken_over=True))

    def _next_claim(self) -> Claim:
        ttl = self._bench.settings.lease_ttl
        claim = queue.claim_next(self._bench.connection, runner="conformance", ttl=ttl, only=self.id)
        assert claim is not None
        return claim

    def state(self) -> StoredState:
        return load_state(self._bench.connection, self.id)

    def open_rejects(self) -> list[dict[str, Any]]:
        return checkpoint.list_open(self._bench.connection, self.id)


class Workbench:
    """The real store, and pipelines that write to targets of one case."""

    def __init__(
        self,
        case: SinkCase,
        settings: Settings,
        connection: Connection,
        tables: dict[str, ListTable],
        options: Mapping[str, Any],
    ) -> None:
        self.case = case
        self.settings = settings
        self.connection = connection
        self._tables = tables
        self._options = options

    def define(self, table: ListTable, **fields: Any) -> Definition:
        name = f"p{next(_numbers)}"
        self._tables[name] = table
        defaults: dict[str, Any] = {
            "name": name,
            "source_type": CONNECTOR,
            "source_query": name,
            "target_table": self.case.target(),
            "key_columns": ["id"],
        }
        options = {**self._options, **fields.get("options", {})}
        return Definition.model_validate(defaults | fields | {"options": options})

    def pipeline(self, table: ListTable, **fields: Any) -> StoredPipeline:
        return StoredPipeline(self, self.define(table, **fields), table)
