"""What a definition would do, asked of source and target without moving a row."""

from dataclasses import dataclass
from datetime import datetime

from vitrine import plan
from vitrine.errors import VitrineError
from vitrine.model import Definition, Mode, print_duration
from vitrine.plan import PostgresPlan
from vitrine.postgres import connect
from vitrine.settings import Settings
from vitrine.store import pipelines


@dataclass(frozen=True)
class Report:
    """What `validate` tells: how the pipeline would run, and what its author should know."""

    lane: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    target_exists: bool
    rows_expected: int | None
    first_due_at: datetime | None  # if it were stored now; None: not scheduled, or disabled
    warnings: tuple[str, ...]


def validate(definition: Definition, settings: Settings) -> Report:
    """Every rule, the configured connections included; VitrineError where the pipeline could not run."""
    built = plan.build_comparison(definition, settings)
    try:
        return Report(
            lane=built.lane,
            columns=tuple((column.name, column.type_name) for column in built.reader.columns),
            key=built.writer.key,
            target_exists=built.writer.exists,
            rows_expected=built.reader.rows_expected(),
            first_due_at=_first_due(definition, settings),
            warnings=tuple(_warnings(definition, built)),
        )
    finally:
        built.close()


def _first_due(definition: Definition, settings: Settings) -> datetime | None:
    with connect(settings.store_url, name="vitrine:validate") as store:
        return pipelines.first_due(store, definition, settings.zone)


def _warnings(definition: Definition, built: PostgresPlan) -> list[str]:
    warnings: list[str] = []
    for table in built.writer.cascades():
        warnings.append(
            f"{table} refers to the target with ON DELETE CASCADE: a row that vanishes from the source takes its rows"
            " there with it"
        )
    if definition.options.lookback is not None and definition.mode is Mode.INCREMENTAL:
        warnings.append(
            f"options.lookback: a transaction that stays open longer than {print_duration(definition.options.lookback)}"
            " may commit rows that are never read"
        )
    elif definition.mode is Mode.INCREMENTAL:
        warnings += _horizon_warnings(built)
    return warnings


def _horizon_warnings(built: PostgresPlan) -> list[str]:
    try:
        blocker = built.reader.horizon_blocker()
    except VitrineError as exc:
        return [f"an incremental run would be refused now: {exc}"]
    return [f"the checkpoint waits for an open transaction ({blocker}); rows arrive all the same"] if blocker else []
