"""The plan of a claimed run, and what the store knows for it."""

from collections.abc import Generator
from contextlib import contextmanager

from vitrine.engine import plan
from vitrine.engine.plan import Known, Prepared
from vitrine.model import Claim, RequestKind
from vitrine.runner.control import RunnerControl
from vitrine.settings import Settings
from vitrine.store import runs
from vitrine.store.database import Link

ESTIMATED = frozenset({RequestKind.RUN, RequestKind.FULL})
"""The kinds that read the whole query, or what its estimate is about."""


@contextmanager
def planned(claim: Claim, settings: Settings, store: Link, control: RunnerControl) -> Generator[Prepared]:
    """The plan of the run, which its control uses; Interrupted if the run should end before it is made."""
    connection = store.connection()
    context = runs.context(connection, claim.pipeline_id)
    known = Known(context.installation, context.open_rejects, context.facts)
    prepared = plan.build(claim, settings, control, known, preparing=control.preparing)
    try:
        rows = prepared.source.rows_expected if claim.kind in ESTIMATED else None
        runs.describe(connection, claim, lane=prepared.lane, rows=rows)
        control.use_plan(prepared, rows)
        yield prepared
    finally:
        prepared.close()
