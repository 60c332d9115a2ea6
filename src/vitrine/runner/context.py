"""What a claimed run works with, in one value."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from vitrine.engine import plan
from vitrine.engine.plan import CheckedDefinition, Known, Prepared
from vitrine.pipeline import Claim
from vitrine.postgres import Connection
from vitrine.runner.control import RunnerControl
from vitrine.settings import Settings
from vitrine.store import runs
from vitrine.store import state as states
from vitrine.store.checkpoints import StoreCheckpoint
from vitrine.store.database import Link
from vitrine.store.state import StoredState

Result = TypeVar("Result")


@dataclass(frozen=True)
class RunContext:
    """One claim, over all attempts of its run."""

    claim: Claim
    settings: Settings
    store: Link
    checkpoint: StoreCheckpoint
    control: RunnerControl

    def connection(self) -> Connection:
        """To the store; another one after the last was lost."""
        return self.store.connection()

    def stored_state(self) -> StoredState:
        return states.load(self.connection(), self.claim.pipeline_id)

    def stored(self) -> runs.RunContext:
        """What the store knows beside the state: open rejects, facts of the target, the installation."""
        return runs.context(self.connection(), self.claim.pipeline_id)

    def record(self, figures: dict[str, object]) -> None:
        """Store the result of the run."""
        runs.record_result(self.connection(), self.claim, figures)

    @contextmanager
    def plan(self, *, estimate: bool = False) -> Generator[Prepared]:
        """The plan of the run, which its control uses; Stop if the run should end before it is made.

        `estimate`: the run reads the whole query, or what its estimate is about, so that its progress has an end.
        """
        connection = self.connection()
        context = self.stored()
        known = Known(context.installation, context.open_rejects, context.facts)
        prepared = plan.build(self.claim, self.settings, self.control, known, preparing=self.control.preparing)
        try:
            rows = prepared.source.rows_expected if estimate else None
            runs.describe(connection, self.claim, lane=prepared.lane, rows=rows)
            self.control.use_plan(prepared, rows)
            yield prepared
        finally:
            prepared.close()

    def compare(self, compare: Callable[[CheckedDefinition], Result]) -> Result:
        """What `compare` returns for the claimed definition; Stop if the run should end before."""
        from vitrine.engine.reconcile import compared_as_run  # most runs compare nothing

        return compared_as_run(self.claim, self.settings, self.control, compare)
