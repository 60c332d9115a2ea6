"""Plans of pipelines whose target is a search index."""

from typing import Any

import pytest

from tests.helpers.planning_changes import carry_out, figures, of_run, planned
from tests.helpers.running import run, succeed
from tests.helpers.search_cluster import INCREMENTAL, NUMBERS, Cluster
from vitrine.operations import changes

UPPER = NUMBERS.replace("note", "CASE WHEN id <= 20 THEN upper(note) ELSE note END AS note", 1)


def test_a_full_load_is_planned_document_by_document(cluster: Cluster) -> None:
    cluster.fill(1, 100)
    pipeline = cluster.create()
    succeed(cluster.connection, cluster.settings, pipeline)
    cluster.fill(101, 110)
    query = f"{UPPER} WHERE id <> 50"
    plan = planned(cluster.settings, pipeline, source_query=query)
    found = of_run(plan, "next")
    assert plan.rebuilds
    assert (figures(found), found.written) == ((10, 20, 1), 109)
    assert found.examples.removed == ["50"]
    before = cluster.notes()
    assert carry_out(cluster.connection, cluster.settings, pipeline, source_query=query)[0] == found.written
    after = cluster.notes()
    changed = sum(after[key] != before[key] for key in before.keys() & after.keys())
    assert (len(after.keys() - before.keys()), changed, len(before.keys() - after.keys())) == figures(found)


@pytest.mark.parametrize("strict", [False, True])
def test_the_guard_of_an_index_is_planned_as_it_counts(cluster: Cluster, strict: bool) -> None:
    cluster.fill(1, 20)
    pipeline = cluster.create(options={"strict_shrink": strict})
    succeed(cluster.connection, cluster.settings, pipeline)
    query = NUMBERS.replace("id,", "id + 100 AS id,", 1)
    found = of_run(planned(cluster.settings, pipeline, source_query=query), "next")
    assert figures(found) == (20, 0, 20)
    changed = changes.change(cluster.connection, cluster.settings, pipeline.id, {"source_query": query})
    error = run(cluster.connection, cluster.settings, changed).error
    assert (error is not None, "SHRINK_GUARD" in (found.refused or "")) == (strict, strict)


@pytest.mark.parametrize("state", ["keep", "reset"])
def test_changes_are_planned_from_the_checkpoint_on(cluster: Cluster, state: Any) -> None:
    cluster.fill(1, 100)
    pipeline = cluster.create(**INCREMENTAL)
    succeed(cluster.connection, cluster.settings, pipeline)
    cluster.connection.execute("UPDATE content.numbers SET modified = clock_timestamp() WHERE id = 5")
    cluster.fill(101, 110)
    found = of_run(planned(cluster.settings, pipeline, source_query=UPPER), state)
    before = cluster.notes()
    carry_out(cluster.connection, cluster.settings, pipeline, source_query=UPPER, state=state)
    after = cluster.notes()
    changed = sum(after[key] != before[key] for key in before.keys() & after.keys())
    assert (len(after.keys() - before.keys()), changed, 0) == figures(found)


def test_another_key_and_a_new_column_are_named_with_what_happens(cluster: Cluster) -> None:
    cluster.fill(1, 20)
    pipeline = cluster.create()
    succeed(cluster.connection, cluster.settings, pipeline)
    query = NUMBERS.replace("id,", "id, id::text AS code,", 1)
    plan = planned(cluster.settings, pipeline, source_query=query, key_columns=["code"])
    assert [(one.name, one.change) for one in plan.columns] == [("code", "added")]
    assert "built again" in plan.columns[0].effect
    (found,) = plan.runs
    assert found.reason == "the mart has no column 'code', which is in the key"
