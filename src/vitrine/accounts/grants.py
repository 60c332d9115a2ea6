"""What the accounts may do with each table of the store: the only list of these grants."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

STORE = "etl"

DEFINITION = (
    *("name", "description", "owner", "tags", "type", "source_type", "source", "source_query", "python_task"),
    *("target_table", "mode", "incremental_key", "incremental_id_key", "key_columns", "batch_size"),
    *("batch_size_exact", "enabled", "checks", "options", "schedule_interval", "config_version"),
)
"""Columns of etl_pipelines that configure a pipeline: of the API only."""

FILE = ("file_name", "file_applied_at", "file_digest", "file_differs")
"""Columns of etl_pipelines that say which file manages a definition: of the API only."""

LEASE = ("lease_token", "lease_owner", "lease_expires_at", "heartbeat_at")
"""Columns that say which runner has a pipeline: of runners only."""

OUTCOME = (
    *("postponed", "last_error_code", "last_error_message", "last_error_at"),
    *("alerts", "rejects_noted"),
)
"""Columns with the result of the last run: of runners only."""

REQUEST = (
    *("status", "request_id", "requested_kind", "requested_options", "requested_trigger", "requested_at"),
    *("requested_due_at", "promised_at", "returns_to", "rerun", "rerun_request_id", "rerun_kind", "rerun_options"),
    *("rerun_held", "status_since"),
    *("attempt", "next_attempt_at", "next_due_at", "regular_due_at", "fresh_as_of", "reload_version", "updated_at"),
    *("verified_until", "verdict", "verdict_at", "next_reconcile_at"),
)
"""Columns that both change: the API and the CLI make requests, and a runner makes them from schedules and ends them."""

FIXED = ("id", "created_at")
"""Columns that are never updated."""

CHECKPOINT = (
    *("cursor", "pending_cursor", "pending_since", "cursor_fingerprint", "generation_open", "generation_cursor"),
    *("generation_position", "generation_rows", "target_identity", "sink_facts", "batch_seq", "updated_at"),
)
"""Columns of etl_state that `state: reset` clears."""


AUDITED = ("actor", "role", "via", "address", "operation", "pipeline", "pipeline_id", "before", "after")
"""Columns of etl_audit that a change records; number and time are given by the table, so no account can choose them."""


@dataclass(frozen=True)
class Rights:
    """Privileges on a whole table or sequence, and on single columns of a table."""

    whole: frozenset[str] = frozenset()
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])

    def pairs(self) -> set[tuple[str, str]]:
        """Each privilege with its column; the column is empty for the whole table."""
        return {(one, "") for one in self.whole} | {
            (privilege, column) for privilege, columns in self.columns.items() for column in columns
        }


def _may(*whole: str, **columns: Sequence[str]) -> Rights:
    return Rights(frozenset(whole), {name.upper(): tuple(names) for name, names in columns.items()})


NOTHING = Rights()
READ = _may("SELECT")
EVERY_ROW = _may("SELECT", "INSERT", "UPDATE", "DELETE")
APPEND = _may("SELECT", insert=AUDITED)


@dataclass(frozen=True)
class TableGrants:
    """What runner and API may do with a table; the reader has no right on any table of the store."""

    runner: Rights
    api: Rights


TABLES: Mapping[str, TableGrants] = {
    "etl_pipelines": TableGrants(
        runner=_may("SELECT", update=(*REQUEST, *LEASE, *OUTCOME)),
        # guarantee: K16
        api=_may("SELECT", "DELETE", insert=("id", *DEFINITION, "next_due_at"), update=(*DEFINITION, *FILE, *REQUEST)),
    ),
    "etl_pipeline_tasks": TableGrants(runner=READ, api=_may("SELECT", "INSERT", "DELETE")),
    "etl_chains": TableGrants(runner=_may("SELECT", update=("succeeded_at",)), api=_may("SELECT", "INSERT", "DELETE")),
    "etl_state": TableGrants(runner=_may("SELECT", "INSERT", "UPDATE"), api=_may("SELECT", update=CHECKPOINT)),
    "etl_runs": TableGrants(runner=EVERY_ROW, api=READ),
    "etl_run_logs": TableGrants(runner=EVERY_ROW, api=READ),
    "etl_reconciliations": TableGrants(runner=_may("SELECT", "INSERT", "DELETE"), api=READ),
    "etl_rejects": TableGrants(runner=_may("SELECT", "INSERT", "UPDATE"), api=READ),
    "etl_generations": TableGrants(runner=EVERY_ROW, api=_may("SELECT", "DELETE")),
    "etl_runners": TableGrants(runner=EVERY_ROW, api=READ),
    "etl_installation": TableGrants(runner=READ, api=READ),
    "etl_tokens": TableGrants(runner=NOTHING, api=_may("SELECT", "INSERT", "UPDATE")),
    "etl_sessions": TableGrants(
        runner=NOTHING,
        api=_may("SELECT", "DELETE", insert=("hash", "token_id", "expires_at"), update=("seen_at", "expires_at")),
    ),
    "etl_notifications": TableGrants(runner=EVERY_ROW, api=READ),
    "etl_audit": TableGrants(runner=APPEND, api=APPEND),
    "alembic_version": TableGrants(runner=READ, api=READ),
    "fencing_seq": TableGrants(runner=_may("USAGE"), api=NOTHING),
}
"""By table or sequence. One that an older store does not have is skipped."""
