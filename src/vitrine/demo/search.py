"""The search indexes of the demo: their pipelines, and searches that find films in them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from rich.console import Console

from vitrine.core.rows import TargetInfo
from vitrine.definition import connectors
from vitrine.definition.context import RunInfo
from vitrine.definition.files import read_folder
from vitrine.definition.model import Definition
from vitrine.definition.pipeline import Pipeline
from vitrine.definition.yaml import Document
from vitrine.demo.story import operator, shorten, show_table
from vitrine.errors import VitrineError
from vitrine.operations import definitions, plans
from vitrine.plan import planner
from vitrine.plan.planner import NoLease
from vitrine.postgres import Connection, connect
from vitrine.settings import Settings
from vitrine.store import history, pipelines, state
from vitrine.text import markup

CONNECTOR = "elasticsearch"
REQUESTS = "vitrine.connectors.elasticsearch.client:Requests"
CATALOGUE = "movies"
TIMEOUT = timedelta(seconds=5)
FOUND_FILMS = 5
TITLE_WIDTH, FOUND_WIDTH = 32, 40
RUSSIAN_WORD = "планета"
"""The sample has a film with another form of this word in its title, and one in its description."""


def documents() -> list[Document]:
    """The pipelines of the search indexes, from the YAML files in the package."""
    return read_folder(Path(str(files("vitrine.demo").joinpath("search_pipelines"))))


def prepare(console: Console, store: Connection, settings: Settings) -> list[Pipeline]:
    """Create the pipelines where they are missing; if they cannot write, one sentence with the reason instead."""
    sample = documents()
    if reason := _reason_without(store, settings, sample):
        console.print(f"Search indexes are left out: {markup(reason)}; `make demo-search` starts an Elasticsearch.")
        return []
    names = [str(document.fields["name"]) for document in sample]
    known = {pipeline.name for pipeline in pipelines.list_all(store)}
    plans.store_documents(operator(store, settings), store, [one for one in sample if one.fields["name"] not in known])
    console.print(f"[green]✓[/] Pipelines of search indexes: {markup(', '.join(names))}")
    return [pipelines.get(store, name) for name in names]


def _reason_without(store: Connection, settings: Settings, sample: Sequence[Document]) -> str | None:
    """Why there can be no search indexes: no cluster is configured or answers, or its indexes belong to others."""
    try:
        if not getattr(_section(settings), "is_configured", False):
            return "VITRINE_ELASTICSEARCH_URL is not set"
        for document in sample:
            _target(store, settings, document.valid_definition())
    except VitrineError as exc:
        return str(exc)
    return None


def _target(store: Connection, settings: Settings, definition: Definition) -> TargetInfo:
    """The target as a run finds it; a VitrineError if the run could not write to it."""
    run = RunInfo("vitrine:demo", installation=history.installation_id(store))
    given = {**settings.connectors.get(CONNECTOR, {}), "request_timeout": TIMEOUT}
    quick = settings.model_copy(update={"connectors": {**settings.connectors, CONNECTOR: given}})
    with closing(planner.prepare(planner.check(definition, quick, run=run))) as built:
        return built.plan.target


def _section(settings: Settings) -> BaseModel:
    connector = connectors.installed()[CONNECTOR]
    return settings.section(connector.name, connector.settings)


# -- the demo's own store ---------------------------------------------------------------------------------------------


def follow_cluster(store: Connection, settings: Settings, wanted: Sequence[Pipeline]) -> list[Pipeline]:
    """Enable the pipelines, and forget what an earlier demo has written to another cluster."""
    return [_follow(store, settings, pipeline) for pipeline in wanted]


def _follow(store: Connection, settings: Settings, pipeline: Pipeline) -> Pipeline:
    stored = state.load_state(store, pipeline.id).identity
    moved = stored is not None and stored != _target(store, settings, pipeline.definition).identity
    context, key = operator(store, settings), str(pipeline.id)
    definitions.change(context, key, {"enabled": True}, state="reset" if moved else None, validate=False)
    return pipelines.get(store, pipeline.id)


def suspend(store: Connection, settings: Settings) -> None:
    """Disable the pipelines that an earlier demo has created: without a cluster, every run of them would fail."""
    targets = {str(one.fields["name"]): str(one.fields["target_table"]) for one in documents()}
    for pipeline in pipelines.list_all(store):
        if not isinstance(pipeline, Pipeline):
            continue
        definition = pipeline.definition
        if definition.enabled and targets.get(pipeline.name) == definition.target_table:
            definitions.set_enabled(operator(store, settings), str(pipeline.id), False)


# -- what the demo shows ----------------------------------------------------------------------------------------------


def show(console: Console, settings: Settings, wanted: Sequence[Pipeline]) -> None:
    """Show the indexes, films found by the name of an actor, and films found by another form of a Russian word."""
    with closing(Cluster(settings)) as cluster:
        names = [pipeline.definition.target_table.partition(":")[2] for pipeline in wanted]
        rows = [(f"es:{name}", cluster.index_of(name), f"{cluster.count(name):,}") for name in names]
        show_table(console, "Search indexes", ("alias", "index", "documents"), rows, right=("documents",))
        actor = _some_actor(settings).lower()
        _show_films(console, f"Films with the actor “{actor}” (nested query)", cluster.find(by_actor(actor)))
        title = f"Films about “{RUSSIAN_WORD}”, in any form of the word"
        _show_films(console, title, cluster.find(by_words(RUSSIAN_WORD)))


def by_actor(name: str) -> dict[str, Any]:
    """All parts of the name belong to one actor; the actors of a film are separate nested documents."""
    match = {"match": {"actors.full_name": {"query": name, "operator": "and"}}}
    return {"query": {"nested": {"path": "actors", "query": match, "inner_hits": {}}}}


def by_words(words: str) -> dict[str, Any]:
    """Any form of the words, in the title or the description."""
    return {
        "query": {"multi_match": {"query": words, "fields": ["title^3", "description"]}},
        "highlight": {
            "fields": {"title": {}, "description": {}},
            "type": "plain",  # its fragments are not whole sentences
            "fragmenter": "simple",
            "fragment_size": FOUND_WIDTH - 5,
            "pre_tags": "«",
            "post_tags": "»",
        },
    }


_SOME_ACTOR = """
    SELECT p.full_name
      FROM content.film_work AS f
      JOIN content.person_film_work AS pf ON pf.film_work_id = f.id AND pf.role = 'actor'
      JOIN content.person AS p ON p.id = pf.person_id
     ORDER BY f.title NOT LIKE 'Star Wars%', f.creation_date, f.id, p.full_name
     LIMIT 1
"""


def _some_actor(settings: Settings) -> str:
    """An actor of the first Star Wars film."""
    with connect(settings.source_url("default"), name="vitrine:demo") as source:
        return source.execute(_SOME_ACTOR).fetchall()[0]["full_name"]


def _show_films(console: Console, title: str, found: Sequence[Mapping[str, Any]]) -> None:
    rows = [
        (
            shorten(hit["_source"]["title"], TITLE_WIDTH),
            str(hit["_source"].get("creation_date", ""))[:4],
            shorten(_place_of(hit), FOUND_WIDTH),
        )
        for hit in found
    ]
    show_table(console, title, ("title", "year", "found"), rows, right=("year",))


def _place_of(hit: Mapping[str, Any]) -> str:
    """What the query has found in a film: its actors, or a part of its texts."""
    actors = hit.get("inner_hits", {}).get("actors", {}).get("hits", {}).get("hits", ())
    texts = [part for parts in hit.get("highlight", {}).values() for part in parts]
    return ", ".join([*(actor["_source"]["full_name"] for actor in actors), *texts[:1]]).strip()


class Cluster:
    """The configured Elasticsearch, asked as an application would."""

    def __init__(self, settings: Settings) -> None:
        requests = connectors.load_class(connectors.installed()[CONNECTOR], REQUESTS)
        self._requests: Any = requests(_section(settings), f"es:{CATALOGUE}", NoLease())

    def index_of(self, alias: str) -> str:
        """The index that readers of an alias see."""
        return ", ".join(self._ask(lambda client: client.indices.get_alias(name=alias).body))

    def count(self, alias: str) -> int:
        self._ask(lambda client: client.indices.refresh(index=alias))
        return self._ask(lambda client: client.count(index=alias).body)["count"]

    def find(self, search: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The hits that fit best."""
        request = {"index": CATALOGUE, "size": FOUND_FILMS, "sort": ["_score", "film_id"], **search}
        return self._ask(lambda client: client.search(**request).body)["hits"]["hits"]

    def close(self) -> None:
        self._requests.close()

    def _ask(self, work: Callable[[Any], Any]) -> Any:
        return self._requests.call(work)
