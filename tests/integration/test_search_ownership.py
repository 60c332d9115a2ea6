"""Indexes that are not this pipeline's: made by hand, by another installation, or moved and deleted behind its back."""

from typing import Any

import pytest

from tests.helpers.running import run, succeed, sweep
from tests.helpers.search_cluster import INCREMENTAL, NUMBERS, Cluster
from tests.helpers.search_proxy import Lost, Reply, Request
from vitrine.definition.pipeline import Pipeline
from vitrine.errors import ConfigError
from vitrine.operations import changes
from vitrine.plan import validation
from vitrine.runner.run import Executed
from vitrine.store import pipelines, state


def refusal(executed: Executed) -> tuple[str, str]:
    """Code and text of the error of a run."""
    assert executed.error is not None
    return executed.error.code, str(executed.error)


def code_of_validation(cluster: Cluster, pipeline: Pipeline) -> str:
    """What `validate` says before a row moves."""
    stored = pipelines.get(cluster.connection, pipeline.name)
    with pytest.raises(ConfigError) as refused:
        validation.validate(stored.definition, cluster.settings)
    return refused.value.code


def give_away(cluster: Cluster) -> None:
    """All indexes of the target now belong to another installation."""
    for index in cluster.search.indexes(cluster.name):
        meta = cluster.search.ask("GET", f"{index}/_mapping")[index]["mappings"]["_meta"]
        meta["vitrine"]["installation"] = "another"
        cluster.search.ask("PUT", f"{index}/_mapping", {"_meta": meta})


def change_aliases(cluster: Cluster, *actions: dict[str, dict[str, str]]) -> None:
    cluster.search.ask("POST", "_aliases", {"actions": list(actions)})


# -- made by hand -----------------------------------------------------------------------------------------------------


@pytest.mark.promise("I14")
@pytest.mark.parametrize("makes", ["index", "alias", "guard"])
def test_an_index_that_vitrine_has_not_created_is_never_changed(cluster: Cluster, makes: str) -> None:
    """`guard`: the name of the empty index that a first load needs, and that its publish removes."""
    cluster.fill(1, 3)
    own = {"index": cluster.name, "alias": f"{cluster.name}-by-hand", "guard": f"{cluster.name}__g0"}[makes]
    cluster.search.ask("PUT", own, {"aliases": {cluster.name: {}}} if makes == "alias" else {})
    cluster.search.ask("PUT", f"{own}/_doc/1?refresh=true", {"note": "by hand"})
    before = cluster.search.ask("GET", f"{own}/_mapping")
    pipeline = cluster.create()
    assert code_of_validation(cluster, pipeline) == "TARGET_FOREIGN"
    code, text = refusal(run(cluster.connection, cluster.settings, pipeline, allow_shrink=True))
    assert code == "TARGET_FOREIGN"
    assert cluster.name in text
    assert cluster.search.documents(own) == {"1": {"note": "by hand"}}
    assert cluster.search.ask("GET", f"{own}/_mapping") == before


@pytest.mark.parametrize("meta", ["ours", ["a list"], {"owner": "search team"}])
def test_an_index_whose_mark_is_not_of_vitrine_is_left_alone(cluster: Cluster, meta: object) -> None:
    cluster.fill(1, 3)
    cluster.search.ask("PUT", f"{cluster.name}__g7", {"mappings": {"_meta": {"vitrine": meta}}})
    succeed(cluster.connection, cluster.settings, cluster.create())
    assert sweep(cluster.connection, cluster.settings) == []
    assert set(cluster.search.indexes(cluster.name)) == {f"{cluster.name}__g7", f"{cluster.name}__g8"}


def test_an_alias_of_two_indexes_is_refused(cluster: Cluster) -> None:
    cluster.fill(1, 3)
    pipeline = cluster.create()
    for _ in range(2):
        succeed(cluster.connection, cluster.settings, pipeline)
    for index in cluster.search.indexes(cluster.name):
        change_aliases(cluster, {"add": {"index": index, "alias": cluster.name}})
    assert code_of_validation(cluster, pipeline) == "TARGET_FOREIGN"
    code, text = refusal(run(cluster.connection, cluster.settings, pipeline))
    assert (code, "has 2 indexes" in text) == ("TARGET_FOREIGN", True)


# -- behind the back of the checkpoint --------------------------------------------------------------------------------


@pytest.mark.promise("E14")
@pytest.mark.parametrize(
    ("event", "code"), [("deleted", "TARGET_SCHEMA"), ("by hand", "TARGET_FOREIGN"), ("moved", "TARGET_REPLACED")]
)
def test_changes_are_not_written_to_another_index_than_the_checkpoint_belongs_to(
    cluster: Cluster, event: str, code: str
) -> None:
    cluster.fill(1, 3)
    pipeline = cluster.create(**INCREMENTAL)
    succeed(cluster.connection, cluster.settings, pipeline)
    first = cluster.search.live(cluster.name)
    succeed(cluster.connection, cluster.settings, pipeline, full=True)
    second = cluster.search.live(cluster.name)
    if event == "moved":
        remove = {"remove": {"index": second, "alias": cluster.name}}
        change_aliases(cluster, remove, {"add": {"index": first, "alias": cluster.name}})
    else:
        cluster.search.remove(cluster.name)
    if event == "by hand":
        cluster.search.ask("PUT", second, {"aliases": {cluster.name: {}, f"{second}__write": {}}})
    before = cluster.search.documents(cluster.name), state.load_state(cluster.connection, pipeline.id).position
    cluster.fill(4, 5)
    assert refusal(run(cluster.connection, cluster.settings, pipeline))[0] == code
    assert (
        cluster.search.documents(cluster.name),
        state.load_state(cluster.connection, pipeline.id).position,
    ) == before


def test_another_key_needs_a_full_run_because_documents_with_the_old_ids_would_stay(cluster: Cluster) -> None:
    cluster.fill(1, 3)
    query = "SELECT id, id + 100 AS other, note, modified FROM content.numbers"
    pipeline = cluster.create(query, **INCREMENTAL)
    succeed(cluster.connection, cluster.settings, pipeline)
    changes.change(cluster.connection, cluster.settings, pipeline.name, {"key_columns": ["other"]}, state="reset")
    assert code_of_validation(cluster, pipeline) == "TARGET_SCHEMA"
    code, text = refusal(run(cluster.connection, cluster.settings, pipeline))
    assert (code, "build the index again by a full run" in text) == ("TARGET_SCHEMA", True)
    assert cluster.ids() == ["1", "2", "3"]
    succeed(cluster.connection, cluster.settings, pipeline, full=True)
    assert cluster.ids() == ["101", "102", "103"]


# -- two installations on one cluster ---------------------------------------------------------------------------------


def test_an_index_of_another_installation_is_refused(cluster: Cluster) -> None:
    cluster.fill(1, 3)
    pipeline = cluster.create()
    succeed(cluster.connection, cluster.settings, pipeline)
    give_away(cluster)
    code, text = refusal(run(cluster.connection, cluster.settings, pipeline))
    assert (code, "another installation" in text) == ("TARGET_FOREIGN", True)


@pytest.mark.parametrize("keep", [0, 1])
def test_generations_of_another_installation_are_never_removed(cluster: Cluster, keep: int) -> None:
    cluster.fill(1, 3)
    pipeline = cluster.create(options={"keep_generations": keep})
    for _ in range(2):
        succeed(cluster.connection, cluster.settings, pipeline)
    others = cluster.search.indexes(cluster.name)
    give_away(cluster)
    change_aliases(cluster, {"remove": {"index": "*", "alias": cluster.name}})
    for _ in range(3):
        succeed(cluster.connection, cluster.settings, pipeline)
    assert sweep(cluster.connection, cluster.settings) == []
    found = cluster.search.indexes(cluster.name)
    assert found.keys() >= others.keys()
    assert len(found) == len(others) + 1 + keep


def test_a_load_of_another_installation_is_not_swept(cluster: Cluster) -> None:
    load_without_publishing(cluster)
    give_away(cluster)
    assert sweep(cluster.connection, cluster.settings) == []
    assert len(cluster.search.indexes(cluster.name)) == 2  # the load and the guard


# -- leftovers --------------------------------------------------------------------------------------------------------


def load_without_publishing(cluster: Cluster, **fields: Any) -> Pipeline:
    """The cluster does not answer when the alias should change; the request is withdrawn."""

    def lose(request: Request) -> Reply | None:
        if request.path.startswith("/_aliases"):
            raise Lost
        return None

    cluster.fill(1, 3)
    pipeline = cluster.create(**fields)
    with cluster.proxy.following(lose):
        refusal(run(cluster.connection, cluster.settings, pipeline, retry=True))
    pipelines.request_pause(cluster.connection, pipeline.id)
    query = {"source_query": f"{NUMBERS} WHERE id > 0"}
    changes.change(cluster.connection, cluster.settings, pipeline.name, query, state="reset")
    return pipeline


@pytest.mark.promise("I13")
def test_a_load_that_failed_while_it_was_published_is_swept(cluster: Cluster) -> None:
    """Its mark says published, because that is noted just before the alias changes."""
    load_without_publishing(cluster)
    left = set(cluster.search.indexes(cluster.name))
    assert len(left) == 2  # the load and the guard
    assert set(sweep(cluster.connection, cluster.settings)) == left
    assert cluster.search.indexes(cluster.name) == {}


def test_a_first_load_is_published_though_someone_deleted_its_guard(cluster: Cluster) -> None:
    cluster.fill(1, 3)
    pipeline = cluster.create()

    def remove_guard(request: Request) -> Reply:
        cluster.search.ask("DELETE", f"{cluster.name}__g0")
        return request.forward()

    with cluster.proxy.following(cluster.proxy.once(remove_guard)):
        succeed(cluster.connection, cluster.settings, pipeline)
    live = cluster.search.live(cluster.name)
    assert list(cluster.search.indexes(cluster.name)) == [live]
    assert cluster.ids() == ["1", "2", "3"]
