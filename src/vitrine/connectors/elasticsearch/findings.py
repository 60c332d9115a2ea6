"""What can be said about a target before a document is written."""

from collections.abc import Iterator, Sequence

from vitrine.connectors.elasticsearch.definition import IndexDefinition
from vitrine.connectors.elasticsearch.generations import CLOSED, READ_ONLY, Found, Mark, StoredIndex, foreign_guard
from vitrine.connectors.elasticsearch.requests import Job
from vitrine.connectors.elasticsearch.row_checks import check_findings
from vitrine.connectors.elasticsearch.target import missing_field
from vitrine.flow.rows import NUMBERS, Column, Finding, Kind, bare_type, kind_of

_TEXTS = frozenset({Kind.TEXT, Kind.UUID, Kind.OTHER, Kind.INTERVAL, Kind.TIME})


def findings_about(job: Job, found: Found, definition: IndexDefinition, columns: Sequence[Column]) -> Iterator[Finding]:
    yield from _about_key(job, columns)
    yield from definition.findings
    for column in columns:
        if bare_type(column.type) == "json":
            text = (
                f"column '{column.name}' is json: its value is kept, not its text; of a name that it repeats, the last"
                " counts, and reconcile reports other spaces as a difference; cast it to jsonb"
            )
            yield Finding("JSON_TEXT", text, column.name)
    live = found.live
    if live is not None:
        yield from _about_owner(job, live)
        yield from _about_block(job, live)
        yield from _about_ingest(job, live)
        if live.mark is not None:
            yield from _about_changed_key(job, live.mark)
            if columns:
                yield from _about_changes(job, live.mark, definition, columns)
    elif (guard := found.guard) is not None and guard.mark is None:
        yield Finding("TARGET_FOREIGN", foreign_guard(guard), fatal=True)
    if job.options.write == "upsert":
        yield from _about_upsert(job)
    yield from check_findings(job, definition, columns)


def _about_key(job: Job, columns: Sequence[Column]) -> Iterator[Finding]:
    key, names = job.definition.key_columns, [column.name for column in columns]
    if not key:
        yield Finding("KEY_MISSING", f"target {job.target} has no key; set key_columns", fatal=True)
    for name in key if columns else ():
        if name not in names:
            text = f"the rows lack the key column '{name}', which is the id of a document"
            yield Finding("SCHEMA_CHANGED", text, name, fatal=True)
    for column in columns:
        if column.name in key and not column.identical and not _has_one_text(column) and not job.rebuilds:
            text = (
                f"key column '{column.name}' is {column.type}, of which equal values may have different texts (1.0 and"
                " 1.00): if the source writes a key in another way, a second document appears; cast it in the query"
            )
            yield Finding("KEY_TEXT", text, column.name)


def _has_one_text(column: Column) -> bool:
    """A scale and a length are the same for all values of the column."""
    return column.type.startswith(("numeric(", "character("))


def _about_owner(job: Job, live: StoredIndex) -> Iterator[Finding]:
    name, mark = job.target.name, live.mark
    if live.name == name:
        text = (
            f"'{name}' is an index, but a target is an alias of indexes that Vitrine creates; rename the index, or"
            " choose another target"
        )
        yield Finding("TARGET_FOREIGN", text, fatal=True)
    elif mark is None:
        text = (
            f"alias '{name}' belongs to index '{live.name}', which Vitrine has not created; remove the alias, or choose"
            " another target"
        )
        yield Finding("TARGET_FOREIGN", text, fatal=True)
    elif job.run.installation and mark.installation != job.run.installation:
        text = (
            f"index '{live.name}' belongs to another installation of Vitrine; choose another target, or remove the"
            f" alias '{name}'"
        )
        yield Finding("TARGET_FOREIGN", text, fatal=True)


def _about_block(job: Job, live: StoredIndex) -> Iterator[Finding]:
    """A block passes, but a closed index cannot even be counted."""
    if live.block is None or (job.rebuilds and live.block not in (CLOSED, READ_ONLY)):  # a rebuild does not write to it
        return
    text = f"index '{live.name}' of {job.target} takes no changes: {live.block}; open the index, or remove the block"
    yield Finding("SINK_BLOCKED", text, fatal=live.block == CLOSED)


def _about_ingest(job: Job, live: StoredIndex) -> Iterator[Finding]:
    if live.ingest:
        text = (
            f"index '{live.name}' of {job.target} has the ingest pipeline {' and '.join(live.ingest)}, which may change"
            " documents: reconcile reports what differs from the rows; remove index.default_pipeline and"
            " index.final_pipeline, or exclude the index from the template that sets them"
        )
        yield Finding("INGEST_PIPELINE", text)


def _about_changed_key(job: Job, mark: Mark) -> Iterator[Finding]:
    key = job.definition.key_columns
    if mark.key and key and mark.key != key and not job.rebuilds:
        text = (
            f"{job.target} was built with the key ({', '.join(mark.key)}), but the key is now ({', '.join(key)}): the"
            " documents with the old ids would stay; build the index again by a full run"
        )
        yield Finding("TARGET_SCHEMA", text, fatal=True)


def _about_changes(job: Job, mark: Mark, definition: IndexDefinition, columns: Sequence[Column]) -> Iterator[Finding]:
    rebuilt, known = job.rebuilds, mark.columns
    for column in columns:
        if column.name not in known:
            if not rebuilt and job.definition.options.on_schema_change == "fail":
                yield Finding("TARGET_SCHEMA", missing_field(job, column.name), column.name, fatal=True)
        elif not rebuilt and not _fits(column.type, known[column.name]):
            text = (
                f"field '{column.name}' of {job.target} was built for type {known[column.name]}, but the query now"
                f" returns {column.type}; cast it, or build the index again by a full run"
            )
            yield Finding("TARGET_SCHEMA", text, column.name, fatal=True)
    if definition.fingerprint != mark.fingerprint and all(column.name in known for column in columns):
        yield Finding("INDEX_CHANGED", f"the definition of {job.target} has changed; {_consequence(rebuilt=rebuilt)}")


def _consequence(*, rebuilt: bool) -> str:
    if rebuilt:
        return "the next run builds the index again"
    return "changes are written to the index as it is, and a full run builds it again"


def _fits(source: str, stored: str) -> bool:
    """Whether the mapping of one type takes values of another."""
    kinds = {kind_of(source), kind_of(stored)}
    return len(kinds) == 1 or kinds <= NUMBERS or kinds <= _TEXTS


def _about_upsert(job: Job) -> Iterator[Finding]:
    if job.rebuilds:
        text = (
            f"write: upsert changes documents of {job.target}, but mode full builds the index again without the fields"
            " of others, as a full run does; use mode incremental without full runs, or write: index"
        )
        yield Finding("UPSERT_FULL", text, fatal=True)
    text = (
        "write: upsert is at-least-once: a late request of a run that died may overwrite a newer document, fields that"
        " the query no longer returns stay, the cluster rounds numbers with a fraction to double, and merges JSON"
        " objects; use write: index where one pipeline owns the documents"
    )
    yield Finding("UPSERT_UNFENCED", text)
    if job.definition.options.delete_mode == "reconcile_keys":
        text = (
            f"delete_mode: reconcile_keys deletes every document of {job.target} whose key the source lacks, also those"
            " that only other programs have written; use delete_mode: soft_column to keep them"
        )
        yield Finding("UPSERT_DELETES", text)
