"""The indexes behind a target: one per generation, with an alias for readers and one for the writer.

Readers use the alias `<name>`. A load writes to `<index>__load`, changes are written to `<index>__write`: a late
request to an index that was published, replaced or deleted in the meantime finds no alias and changes nothing.
"""

import re
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from elastic_transport import ObjectApiResponse
from elasticsearch import Elasticsearch

from vitrine.connectors.elasticsearch import ElasticsearchSettings
from vitrine.connectors.elasticsearch.client import Job, Requests, described
from vitrine.connectors.elasticsearch.mapping import OWN_META, IndexDefinition, definition_of
from vitrine.core.rows import Batch, Column
from vitrine.definition.context import SweepJob
from vitrine.errors import ConfigError, TransientError, VitrineError

_FIELDS = ",".join(
    [
        "*.aliases",
        "*.mappings",
        "*.settings.index.uuid",
        "*.settings.index.mode",
        "*.settings.index.mapping.source.mode",
        "*.settings.index.blocks",
        "*.settings.index.default_pipeline",
        "*.settings.index.final_pipeline",
        "*.settings.index.verified_before_close",
    ]
)
_GENERATION = re.compile(r"__g([0-9]+)$")
_SOURCE_MODES = frozenset({None, "stored"})
_INDEX_MODES = frozenset({None, "standard", "lookup"})
"""Those whose documents are stored as they were sent."""

_INGEST, _NO_INGEST = ("default_pipeline", "final_pipeline"), "_none"
CLOSED = "it is closed"
READ_ONLY = "index.blocks.read_only is set"
_BLOCKS = {
    "read_only": READ_ONLY,
    "read_only_allow_delete": "index.blocks.read_only_allow_delete is set, as by a cluster whose disks are full",
    "write": "index.blocks.write is set",
}


@dataclass(frozen=True)
class Mark:
    """What Vitrine notes in an index that it has created."""

    installation: str
    pipeline: str
    generation: int | None = None  # None: created by changes, without a load
    fingerprint: str = ""  # of the definition
    columns: Mapping[str, str] = field(default_factory=dict[str, str])  # types by name
    key: tuple[str, ...] = ()
    published: int | None = None  # version of the publish; None: never published


@dataclass(frozen=True)
class StoredIndex:
    """An index as the cluster describes it."""

    name: str
    uuid: str
    aliases: frozenset[str]
    mark: Mark | None  # None: not created by Vitrine
    properties: Mapping[str, Any]
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])  # the mark, and what the pipeline's user has added
    keeps_source: bool = True  # as it was sent, with all of its fields
    requires_routing: bool = False
    ingest: tuple[str, ...] = ()  # ingest pipelines of the cluster that may change its documents
    block: str | None = None  # why it takes no changes: closed, or a block such as `read_only`

    @property
    def load_alias(self) -> str:
        return f"{self.name}__load"

    @property
    def write_alias(self) -> str:
        return f"{self.name}__write"

    @property
    def is_load(self) -> bool:
        """Whether it was never published: the call that publishes an index removes its alias for loads, and the mark is
        set just before it. A template of the cluster may have added aliases of its own."""
        if self.mark is None or self.aliases & {_GENERATION.sub("", self.name), self.write_alias}:
            return False
        return self.load_alias in self.aliases or self.mark.published is None

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(Column(name, type_name) for name, type_name in self.mark.columns.items()) if self.mark else ()


@dataclass(frozen=True)
class Found:
    """Every index behind a target."""

    name: str
    indexes: tuple[StoredIndex, ...]

    @property
    def live(self) -> StoredIndex | None:
        """The one that readers see; ConfigError if it is not a single index with an alias."""
        seen = [one for one in self.indexes if self.name in (one.name, *one.aliases)]
        if len(seen) > 1:
            raise ConfigError(
                f"alias '{self.name}' has {len(seen)} indexes ({', '.join(sorted(one.name for one in seen))}), but a"
                " target has one; remove the alias from the others",
                code="TARGET_FOREIGN",
            )
        return seen[0] if seen else None

    def load(self, installation: str, pipeline: str, generation: int) -> StoredIndex | None:
        wanted = (installation, pipeline, generation)
        found = (one for one in self.indexes if one.mark is not None and self._number(one) != 0)
        return next((one for one in found if one.mark and _load_of(one.mark) == wanted), None)

    @property
    def next_name(self) -> str:
        """A number that no index has: a pipeline may be deleted and created again."""
        return f"{self.name}__g{max((self._number(one) for one in self.indexes), default=0) + 1}"

    @property
    def guard_name(self) -> str:
        return f"{self.name}__g0"

    @property
    def guard(self) -> StoredIndex | None:
        return next((one for one in self.indexes if one.name == self.guard_name), None)

    def replaced(self, installation: str) -> list[StoredIndex]:
        """Generations of this installation that readers saw before, the latest first."""
        published = [
            (one.mark.published, one)
            for one in self.indexes
            if one.mark and one.mark.published and one.mark.installation == installation and not one.is_load
        ]
        published.sort(key=lambda pair: pair[0], reverse=True)
        return [one for _, one in published if self.name not in one.aliases]

    def _number(self, index: StoredIndex) -> int:
        return number_of(index.name)


def number_of(index: str) -> int:
    found = _GENERATION.search(index)
    return int(found[1]) if found else 0


def _load_of(mark: Mark) -> tuple[str, str, int | None]:
    return mark.installation, mark.pipeline, mark.generation


class Generations:
    """Reads, creates, publishes and removes the indexes of one target."""

    def __init__(self, requests: Requests, name: str) -> None:
        self._requests = requests
        self.name = name

    def find(self) -> Found:
        own = re.compile(re.escape(self.name) + r"__g[0-9]+")
        found = described_indexes(self._requests, [self.name, f"{self.name}__g*"])
        return Found(
            self.name, tuple(one for one in found if own.fullmatch(one.name) or self.name in (one.name, *one.aliases))
        )

    # -- creation -------------------------------------------------------------------------------------------------

    def create_live(self, definition: IndexDefinition, mark: Mark) -> StoredIndex:
        """An empty index that readers see at once."""
        name = self.find().next_name
        aliases = {self.name: {}, f"{name}__write": {"is_hidden": True}}
        self._create(name, definition.settings, definition.mappings_with(asdict(mark)), aliases)
        return self._created(name, aliases)

    def create_load(self, definition: IndexDefinition, mark: Mark, *, first: bool) -> StoredIndex:
        """An empty index that no reader sees. `first`: readers see none yet."""
        if first:
            self.ensure_guard(mark)
        name = self.find().next_name
        # guarantee: I13
        aliases = {f"{name}__load": {"is_hidden": True}}
        self._create(name, definition.settings_while_loading, definition.mappings_with(asdict(mark)), aliases)
        return self._created(name, aliases)

    def ensure_guard(self, mark: Mark) -> None:
        """An empty index that the first publish removes: of two publishes, only one can.

        Checked before the publish as well, because someone may have deleted it. Readers must see no index after it
        exists; otherwise another run has published, and has removed the guard.
        """
        found = self.find()
        guard = found.guard
        if guard is None:
            settings = {"index.number_of_replicas": 0, "index.hidden": True}
            aliases = {f"{found.guard_name}__load": {"is_hidden": True}}
            self._create(found.guard_name, settings, {"_meta": {OWN_META: asdict(mark)}}, aliases)
            self._created(found.guard_name, aliases)
        elif guard.mark is None:
            raise ConfigError(foreign_guard(guard), code="TARGET_FOREIGN")
        elif guard.mark != mark:
            self.note(guard, mark)
        if self.find().live is not None:
            raise self._overtaken()

    def _create(
        self, name: str, settings: Mapping[str, Any], mappings: Mapping[str, Any], aliases: Mapping[str, Any]
    ) -> None:
        try:
            self._requests.change(
                lambda client: client.indices.create(index=name, settings=settings, mappings=mappings, aliases=aliases)
            )
        except VitrineError as exc:
            if _kind(exc) == "resource_already_exists_exception":
                raise TransientError(f"target {self._requests.target}: another run creates the same index") from exc
            if "maximum" in _reason(exc) and "shards open" in _reason(exc):
                raise TransientError(
                    f"target {self._requests.target}: the cluster takes no further index ({_reason(exc)}); remove"
                    " indexes, or raise cluster.max_shards_per_node",
                    code="SINK_BLOCKED",
                ) from exc
            if _status(exc) == 400:
                raise ConfigError(
                    f"options.index of {self._requests.target}: {_reason(exc)}", code="INDEX_DEFINITION"
                ) from exc
            raise

    def _created(self, name: str, aliases: Collection[str]) -> StoredIndex:
        """The new index; ConfigError, and no index, if a template of the cluster has made one that cannot be used."""
        found = next((one for one in self.find().indexes if one.name == name), None)
        if found is None:
            raise TransientError(f"target {self._requests.target}: index '{name}' vanished after it was created")
        if problem := self._problem(found, aliases):
            _removed(self._requests, lambda client: client.indices.delete(index=name))
            raise ConfigError(
                f"target {self._requests.target}: an index template of the cluster {problem}; exclude the index from"
                " the template",
                code="INDEX_DEFINITION",
            )
        return found

    def _problem(self, index: StoredIndex, aliases: Collection[str]) -> str | None:
        if self.name in index.aliases and self.name not in aliases:
            return f"gives the alias '{self.name}' to '{index.name}', which readers must not see before it is complete"
        if not index.keeps_source:
            return f"stores _source of '{index.name}' not or not whole, but Vitrine compares documents with their rows"
        if index.requires_routing:
            return f"requires _routing for '{index.name}', but documents have no routing"
        return None

    # -- changes of an index --------------------------------------------------------------------------------------

    def note(self, index: StoredIndex, mark: Mark, properties: Mapping[str, Any] | None = None) -> StoredIndex:
        """Store another mark, and mappings of further columns."""
        added, meta = properties or {}, {**index.meta, OWN_META: asdict(mark)}
        try:
            self._requests.change(
                lambda client: client.indices.put_mapping(index=index.name, properties=added, meta=meta)
            )
        except VitrineError as exc:
            if not added or _status(exc) != 400:
                raise
            raise ConfigError(
                f"index '{index.name}' does not take the mappings of {', '.join(added)} ({_reason(exc)}); build it"
                " again by a full run",
                code="INDEX_DEFINITION",
            ) from exc
        return replace(index, mark=mark, meta=meta, properties={**index.properties, **added})

    def count(self, index: StoredIndex) -> int:
        """Documents, including those that were written a moment ago; TransientError if a shard does not answer."""
        refreshed = self._requests.call(lambda client: client.indices.refresh(index=index.name).body)
        counted = self._requests.call(lambda client: client.count(index=index.name).body)
        for reply in (refreshed, counted):
            self._requests.refuse_partial(reply)
        return self._requests.member(counted, "count")

    # -- publication ----------------------------------------------------------------------------------------------

    def publish(
        self, index: StoredIndex, seen: StoredIndex | None, settings: Mapping[str, Any], mark: Mark
    ) -> StoredIndex:
        """One call that readers see at once; it fails if they see another index than `seen`."""
        self._requests.change(lambda client: client.indices.put_settings(index=index.name, settings=settings))
        noted = self.note(index, mark)
        actions: list[dict[str, Any]] = [
            {"add": {"index": index.name, "alias": self.name}},
            {"add": {"index": index.name, "alias": index.write_alias, "is_hidden": True}},
        ]
        if index.load_alias in index.aliases:  # an earlier generation has none
            actions.append({"remove": {"index": index.name, "alias": index.load_alias, "must_exist": True}})
        if seen is None:
            actions.append({"remove_index": {"index": f"{self.name}__g0"}})
        else:
            # guarantee: I14
            actions.append({"remove": {"index": seen.name, "alias": self.name, "must_exist": True}})
            actions.append({"remove": {"index": seen.name, "alias": seen.write_alias, "must_exist": False}})
        try:
            self._requests.change(lambda client: client.indices.update_aliases(actions=actions))
        except VitrineError as exc:
            if _status(exc) != 404:
                raise
            self._requests.lease.seconds_left()
            raise self._overtaken() from exc
        return noted

    def _overtaken(self) -> TransientError:
        return TransientError(
            f"target {self._requests.target}: another run has published or removed an index in the meantime"
        )

    def remove_replaced(self, keep: int, installation: str) -> None:
        """Remove generations of this installation that readers no longer see, but the latest `keep`."""
        for index in self.find().replaced(installation)[keep:]:
            _removed(self._requests, lambda client, index=index: client.indices.delete(index=index.name))


def foreign_guard(guard: StoredIndex) -> str:
    return (
        f"Vitrine has not created index '{guard.name}', but needs that name during the first load; rename or delete the"
        " index, or choose another target"
    )


def remove_load(requests: Requests, index: StoredIndex) -> bool:
    """Remove an index that was not published; False if it was published or removed in the meantime."""
    if index.load_alias in index.aliases:
        # without this alias no run can publish the index
        actions = [{"remove": {"index": index.name, "alias": index.load_alias, "must_exist": True}}]
        if not _removed(requests, lambda client: client.indices.update_aliases(actions=actions)):
            return False
    return _removed(requests, lambda client: client.indices.delete(index=index.name))


def _removed(requests: Requests, remove: Callable[[Elasticsearch], ObjectApiResponse[Any]]) -> bool:
    """False if there was nothing to remove."""
    try:
        requests.change(remove)
    except VitrineError as exc:
        if _status(exc) != 404:
            raise
        return False
    return True


def described_indexes(requests: Requests, names: Sequence[str]) -> list[StoredIndex]:
    """The indexes with these names, aliases or patterns."""
    reply = requests.call(
        lambda client: (
            client.indices.get(
                index=names,
                ignore_unavailable=True,
                allow_no_indices=True,
                expand_wildcards=["open", "closed", "hidden"],
                filter_path=_FIELDS,
            ).body
        )
    )
    return [_index_of(name, requests.object(found)) for name, found in requests.object(reply).items()]


def _index_of(name: str, found: Mapping[str, Any]) -> StoredIndex:
    mappings = found.get("mappings", {})
    meta = mappings.get("_meta", {})
    settings = found.get("settings", {}).get("index", {})
    return StoredIndex(
        name=name,
        uuid=settings.get("uuid", ""),
        aliases=frozenset(found.get("aliases", {})),
        mark=_mark_of(meta.get(OWN_META)),
        properties=mappings.get("properties", {}),
        meta=meta,
        keeps_source=_keeps_source(mappings.get("_source", {}), settings),
        requires_routing=mappings.get("_routing", {}).get("required", False) is not False,
        ingest=tuple(settings[name] for name in _INGEST if settings.get(name, _NO_INGEST) != _NO_INGEST),
        block=_block_of(settings),
    )


def _keeps_source(source: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    if source.get("enabled", True) is False or source.get("includes") or source.get("excludes"):
        return False
    modes = {source.get("mode"), settings.get("mapping", {}).get("source", {}).get("mode")}
    return modes <= _SOURCE_MODES and settings.get("mode") in _INDEX_MODES


def _block_of(settings: Mapping[str, Any]) -> str | None:
    if settings.get("verified_before_close") == "true":
        return CLOSED
    blocks: Mapping[str, str] = settings.get("blocks", {})
    return next((text for name, text in _BLOCKS.items() if blocks.get(name) == "true"), None)


def _mark_of(noted: Any) -> Mark | None:
    """None for an index without a mark, also if someone else uses its name for something of their own."""
    known = {one.name for one in fields(Mark)}  # a later version may note more
    try:
        return replace(Mark(**{name: value for name, value in noted.items() if name in known}), key=tuple(noted["key"]))
    except (AttributeError, KeyError, TypeError):
        return None


def _status(error: VitrineError) -> int | None:
    return getattr(error.__cause__, "status_code", None)


def _kind(error: VitrineError) -> str:
    return described(getattr(error.__cause__, "body", None))[0]


def _reason(error: VitrineError) -> str:
    return described(getattr(error.__cause__, "body", None))[1]


def missing_field(job: Job, name: str) -> str:
    remedy = "set options.on_schema_change: add_columns, or build the index again by a full run"
    return f"target {job.target} has no field '{name}'; {remedy}"


class IndexTarget:
    """What the units and loads of one sink share."""

    def __init__(self, job: Job, requests: Requests) -> None:
        self.job = job
        self.requests = requests
        self.generations = Generations(requests, job.target.name)
        self.live: StoredIndex | None = None  # found by `describe`, or made by this run
        self._waits_for_predecessor = job.run.taken_over

    @contextmanager
    def opened(self, *, writes: bool = False) -> Generator[None]:
        """Several requests, one after the other."""
        self.requests.reopen()
        self.requests.check()
        if writes and self._waits_for_predecessor:
            # a request of the run that died may still be in progress, and write a document that no newer one replaces
            # guarantee: A8
            self.job.lease.wait(self.job.settings.takeover_grace.total_seconds())
            self._waits_for_predecessor = False
        yield

    def adopt(self, index: StoredIndex) -> None:
        """A load was published: the units that follow write to it."""
        self.live = index

    def prepare(self, batch: Batch) -> StoredIndex:
        """The index for changes. One that vanished is not created again: its older documents would be missing."""
        if self.live is None:
            definition = self.checked_definition_of(batch.columns)
            self.live = self.generations.create_live(definition, self.mark_of(batch.columns, definition))
        self._refuse_new_columns(self.live, batch.columns)
        self.live = self.extended(self.live, batch.columns)
        return self.live

    def _refuse_new_columns(self, index: StoredIndex, columns: Sequence[Column]) -> None:
        """The columns that a transform returns are not known before it runs."""
        if index.mark is None or self.job.definition.options.on_schema_change != "fail":
            return
        if new := [column.name for column in columns if column.name not in index.mark.columns]:
            raise ConfigError(missing_field(self.job, new[0]), code="TARGET_SCHEMA")

    def extended(self, index: StoredIndex, columns: Sequence[Column]) -> StoredIndex:
        """The index with mappings for all of these columns."""
        if index.mark is None or all(column.name in index.mark.columns for column in columns):
            return index
        types = {**index.mark.columns, **{column.name: column.type for column in columns}}
        definition = self.checked_definition_of([Column(name, type_name) for name, type_name in types.items()])
        wanted = definition.mappings["properties"]
        added = {name: mapping for name, mapping in wanted.items() if name not in index.properties}
        mark = replace(index.mark, columns=types, fingerprint=definition.fingerprint)
        return self.generations.note(index, mark, added)

    def definition_of(self, columns: Sequence[Column]) -> IndexDefinition:
        return definition_of(columns, self.job.definition.key_columns, self.job.options.index)

    def checked_definition_of(self, columns: Sequence[Column]) -> IndexDefinition:
        """The same; ConfigError for columns that a transform returns and an index cannot have."""
        definition = self.definition_of(columns)
        for finding in definition.findings:
            if finding.fatal:
                raise ConfigError(finding.text, code=finding.code)
        return definition

    def mark_of(self, columns: Sequence[Column], definition: IndexDefinition) -> Mark:
        run = self.job.run
        return Mark(
            installation=run.installation,
            pipeline=str(run.pipeline_id),
            fingerprint=definition.fingerprint,
            columns={column.name: column.type for column in columns},
            key=self.job.definition.key_columns,
        )


SWEEP_SECONDS = 5.0
"""A runner claims nothing while it sweeps: a cluster that does not answer must not stop it."""


class ShortLease:
    """For requests that belong to no run, and have little time."""

    def __init__(self) -> None:
        self._until = time.monotonic() + SWEEP_SECONDS

    def seconds_left(self) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TransientError(f"the cluster took longer than {SWEEP_SECONDS:g} s")
        return left

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


def sweep(job: SweepJob[ElasticsearchSettings]) -> list[str]:
    if job.settings.url is None:
        return []
    requests = Requests(job.settings, "es:*", ShortLease())
    try:
        staged = [one for one in described_indexes(requests, ["*__g*"]) if _is_own_load(one, job.installation)]
        in_use = {(str(pipeline), number) for pipeline, number in (job.open_loads() if staged else ())}
        leftover = [one for one in staged if one.mark and (one.mark.pipeline, one.mark.generation) not in in_use]
        return [one.name for one in leftover if remove_load(requests, one)]
    finally:
        requests.close()


def _is_own_load(index: StoredIndex, installation: str) -> bool:
    return index.mark is not None and index.mark.installation == installation and index.is_load
