"""The graph of tables and pipelines, without a store."""

from collections.abc import Mapping

from vitrine.console.pages import lineage
from vitrine.core.status import Status
from vitrine.operations.bodies.overview import Cause, Graph, Node, State, Topology, Trouble


def pipeline(name: str) -> Node:
    return Node(f"pipeline:{name}", "pipeline", name)


def table(name: str) -> Node:
    return Node(f"table:/{name}", "table", name)


def graph(*nodes: Node, chains: list[str], troubles: Mapping[str, Trouble | None] | None = None) -> Graph:
    """`chains`: names of tables and pipelines, `film > film_dim > mart`; `troubles`: of pipelines."""
    ids = {node.name: node.id for node in nodes}
    edges = [
        (ids[one], ids[other])
        for chain in chains
        for one, other in zip(chain.split(" > "), chain.split(" > ")[1:], strict=False)
    ]
    states = {ids[name]: State(Status.IDLE, trouble) for name, trouble in (troubles or {}).items() if trouble}
    return Graph.of(Topology.of({node.id: node for node in nodes}, edges), states)


def chain(trouble: Trouble | None = None, second: Trouble | None = None) -> Graph:
    nodes = (table("film"), pipeline("dim"), table("mart"), pipeline("search"), table("index"))
    return graph(*nodes, chains=["film > dim > mart > search > index"], troubles={"dim": trouble, "search": second})


def test_one_hop_shows_what_is_directly_before_and_after_a_node() -> None:
    found = chain().around(["pipeline:dim"], limit=200)
    assert found == ["pipeline:dim", "table:/film", "table:/mart"]
    assert chain().edges_between(found) == [("pipeline:dim", "table:/mart"), ("table:/film", "pipeline:dim")]
    assert chain().around(["pipeline:dim", "table:/mart"], limit=200) == [
        "pipeline:dim",
        "table:/mart",
        "table:/film",
        "pipeline:search",
    ]


def test_a_node_that_does_not_exist_is_left_out() -> None:
    assert chain().around(["pipeline:gone", "table:/index"], limit=200) == ["table:/index", "pipeline:search"]


def test_a_table_with_very_many_readers_shows_as_many_as_allowed() -> None:
    readers = [pipeline(f"p{number}") for number in range(500)]
    wide = graph(table("film"), *readers, chains=[f"film > {one.name}" for one in readers])
    assert len(wide.around(["table:/film"], limit=200)) == 200


def test_a_failure_reaches_everything_behind_it_and_nothing_before() -> None:
    failed = Cause("failed", "dim")
    assert chain("failed").causes == {
        "pipeline:dim": failed,
        "table:/mart": failed,
        "pipeline:search": failed,
        "table:/index": failed,
    }
    assert chain().causes == {}


def test_a_failure_is_shown_before_lateness() -> None:
    assert chain("late", "failed").causes["table:/index"] == Cause("failed", "search")
    assert chain("late", "failed").causes["table:/mart"] == Cause("late", "dim")
    # the late one is behind the failed one, and shows why
    assert chain("failed", "late").causes["pipeline:search"] == Cause("failed", "dim")


def test_a_cycle_of_tables_ends() -> None:
    nodes = (table("a"), pipeline("one"), table("b"), pipeline("two"))
    circle = graph(*nodes, chains=["a > one > b > two > a"], troubles={"one": "failed"})
    assert set(circle.causes) == set(circle.nodes)
    placed = lineage.place_nodes(circle, list(circle.nodes))
    assert {one.id for one in placed} == set(circle.nodes)


def test_a_search_finds_troubled_nodes_first() -> None:
    nodes = (pipeline("Film_a"), pipeline("film_z"), pipeline("genre"))
    found = graph(*nodes, chains=[], troubles={"film_z": "failed"})
    assert [one.name for one in found.search("FILM", limit=5)] == ["film_z", "Film_a"]
    assert [one.name for one in found.search("", limit=2)] == ["film_z", "Film_a"]
    assert [one.name for one in found.search("", limit=1)] == ["film_z"]


def test_graphs_are_equal_while_topology_and_states_are_the_same() -> None:
    first = chain()
    assert Graph.of(first.topology, {}) == first
    assert Graph.of(first.topology, {"pipeline:dim": State(Status.RUNNING)}) != first
    assert chain() != first, "another topology is compared by identity: ten thousand nodes are not"


def test_tables_and_pipelines_stand_in_columns_of_their_own() -> None:
    placed = {one.id: one.column for one in lineage.place_nodes(chain(), list(chain().nodes))}
    assert placed == {"table:/film": 0, "pipeline:dim": 1, "table:/mart": 2, "pipeline:search": 3, "table:/index": 4}


def test_the_first_column_is_used_if_only_a_pipeline_and_its_target_are_shown() -> None:
    placed = {one.id: one.column for one in lineage.place_nodes(chain(), ["pipeline:search", "table:/index"])}
    assert placed == {"pipeline:search": 0, "table:/index": 1}


def test_nodes_stand_beside_their_neighbours() -> None:
    nodes = (table("a"), table("b"), pipeline("reads_b"), pipeline("zz_reads_a"))
    crossing = graph(*nodes, chains=["a > zz_reads_a", "b > reads_b"])
    rows = {one.id: one.row for one in lineage.place_nodes(crossing, list(crossing.nodes))}
    assert rows["table:/a"] == rows["pipeline:zz_reads_a"]
    assert rows["table:/b"] == rows["pipeline:reads_b"]
