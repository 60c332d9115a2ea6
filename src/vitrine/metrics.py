"""A runner's metrics for Prometheus; before `switch_on`, a hook only checks a variable and loads no library."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

OUTCOMES = ("success", "failed", "postponed", "retried", "paused", "released", "lost")
RUN_BUCKETS = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400)
BATCH_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60)

_meters: "_Meters | None" = None


def switch_on() -> "CollectorRegistry":
    """Start counting; returns the registry that collects the metrics."""
    global _meters
    _meters = _meters or _Meters()
    return _meters.registry


def run_started(pipeline: str) -> None:
    """Create every counter of the pipeline at its first run: a rate needs an initial zero."""
    if _meters is not None:
        for counter in _meters.by_pipeline:
            counter.labels(pipeline)
        for outcome in ("success", "failed"):
            _meters.runs.labels(pipeline, outcome)
        for severity in ("fail", "warn"):
            _meters.checks_failed.labels(pipeline, severity)


def run_ended(pipeline: str, outcome: str, seconds: float) -> None:
    if _meters is not None:
        _meters.runs.labels(pipeline, outcome).inc()
        _meters.run_seconds.labels(pipeline).observe(seconds)


def retried(pipeline: str) -> None:
    """An attempt failed for a transient reason, and another one follows."""
    if _meters is not None:
        _meters.retries.labels(pipeline).inc()


def batch_written(pipeline: str, *, read: int, written: int, deleted: int, rejected: int, seconds: float) -> None:
    """A unit was committed. The unit that publishes a full load reads nothing and does not count as a batch."""
    if _meters is not None:
        _meters.rows_read.labels(pipeline).inc(read)
        _meters.rows_written.labels(pipeline).inc(written)
        _meters.rows_deleted.labels(pipeline).inc(deleted)
        _meters.rows_rejected.labels(pipeline).inc(rejected)
        if read:
            _meters.batch_seconds.observe(seconds)


def check_failed(pipeline: str, severity: str) -> None:
    if _meters is not None:
        _meters.checks_failed.labels(pipeline, severity).inc()


def future_rows(pipeline: str, count: int) -> None:
    if _meters is not None:
        _meters.future_rows.labels(pipeline).inc(count)


def lease_expired(pipeline: str, *, crash_loop: bool) -> None:
    if _meters is not None:
        _meters.takeovers.labels(pipeline).inc()
        if crash_loop:
            _meters.crash_loops.labels(pipeline).inc()


def slots(*, used: int, of: int) -> None:
    if _meters is not None:
        _meters.slots.labels("used").set(used)
        _meters.slots.labels("free").set(of - used)


class _Meters:
    """Labels are pipeline names and a few fixed words: their number does not grow with rows, runs or sessions."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
        from prometheus_client import disable_created_metrics as without_times_of_creation

        without_times_of_creation()
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)

        def counter(name: str, sentence: str) -> Counter:
            return Counter(f"vitrine_{name}", sentence, ["pipeline"], registry=registry)

        self.rows_read = counter("rows_read", "Rows read from the source, in committed batches.")
        self.rows_written = counter("rows_written", "Rows inserted into the target or changed in it.")
        self.rows_deleted = counter("rows_deleted", "Rows deleted from the target.")
        self.rows_rejected = counter("rows_rejected", "Rows put into quarantine.")
        self.future_rows = counter("future_rows", "Rows read with a cursor in the future, counted again in every run.")
        self.retries = counter("retries", "Failed attempts that are followed by another attempt.")
        self.takeovers = counter("lease_takeovers", "Expired leases that this runner took over.")
        self.crash_loops = counter("crash_loops", "Pipelines that failed because their runner died repeatedly.")
        self.by_pipeline = (
            self.rows_read,
            self.rows_written,
            self.rows_deleted,
            self.rows_rejected,
            self.future_rows,
            self.retries,
            self.takeovers,
            self.crash_loops,
        )
        self.runs = Counter("vitrine_runs", "Runs by outcome.", ["pipeline", "outcome"], registry=registry)
        self.checks_failed = Counter(
            "vitrine_checks_failed",
            "Checks that the rows of a run did not pass, by severity.",
            ["pipeline", "severity"],
            registry=registry,
        )
        self.run_seconds = Histogram(
            "vitrine_run_seconds", "Duration of runs.", ["pipeline"], buckets=RUN_BUCKETS, registry=registry
        )
        self.batch_seconds = Histogram(
            "vitrine_batch_seconds",
            "Duration of batches of all pipelines, from one commit to the next.",
            buckets=BATCH_BUCKETS,
            registry=registry,
        )
        self.slots = Gauge(
            "vitrine_runner_slots",
            "Slots of this runner: how many runs it can execute at the same time.",
            ["state"],
            registry=registry,
        )
