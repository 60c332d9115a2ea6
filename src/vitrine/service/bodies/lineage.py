"""The graph of tables and pipelines: what feeds what, and what is behind a failed or late pipeline."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Literal, NamedTuple

from vitrine.status import Status

Kind = Literal["table", "reader", "pipeline"]
Trouble = Literal["failed", "late"]


class Node(NamedTuple):
    """A table, an index, a Python reader or a pipeline."""

    id: str
    kind: Kind
    name: str
    place: str = ""  # the source of a table, unless it is a table of the store's database
    enabled: bool = True


class State(NamedTuple):
    """Of a pipeline: what changes without a change of its definition."""

    status: Status = Status.IDLE
    trouble: Trouble | None = None  # of the pipeline itself


@cache
def state_of(status: Status, trouble: Trouble | None) -> State:
    """Ten thousand pipelines share a few of them."""
    return State(status, trouble)


USUAL = State()


class Cause(NamedTuple):
    """A failed or late pipeline before a node."""

    trouble: Trouble
    pipeline: str


@dataclass(frozen=True, eq=False)
class Topology:
    """Every node with those directly before and after it; kept while no definition changes. No two are equal."""

    nodes: Mapping[str, Node]
    before: Mapping[str, Sequence[str]]
    after: Mapping[str, Sequence[str]]
    by_name: Sequence[tuple[str, Node]]  # each with its name in lower case
    unread: int = 0  # pipelines whose query is not parsed yet
    is_cut: bool = False  # the store has more pipelines than are shown

    @classmethod
    def of(
        cls, nodes: Mapping[str, Node], edges: Iterable[tuple[str, str]], *, unread: int = 0, is_cut: bool = False
    ) -> "Topology":
        """`nodes`: by their ids."""
        before: dict[str, list[str]] = {id: [] for id in nodes}
        after: dict[str, list[str]] = {id: [] for id in nodes}
        for one, other in sorted(set(edges)):
            after[one].append(other)
            before[other].append(one)
        in_order = sorted(nodes.values(), key=lambda node: (node.name, node.kind))
        return cls(nodes, before, after, [(node.name.lower(), node) for node in in_order], unread, is_cut)


@dataclass(frozen=True)
class Graph:
    """A topology with the states of its pipelines."""

    topology: Topology
    states: Mapping[str, State]  # by the id of the node; pipelines that are idle and in time are left out
    # of nodes behind a failed or late pipeline, and of these pipelines themselves; follows from the others
    causes: Mapping[str, Cause] = field(compare=False)

    @classmethod
    def of(cls, topology: Topology, states: Mapping[str, State]) -> "Graph":
        return cls(topology, states, _causes(topology, states))

    @property
    def nodes(self) -> Mapping[str, Node]:
        return self.topology.nodes

    @property
    def before(self) -> Mapping[str, Sequence[str]]:
        return self.topology.before

    @property
    def after(self) -> Mapping[str, Sequence[str]]:
        return self.topology.after

    def state(self, id: str) -> State:
        return self.states.get(id, USUAL)

    def neighbours(self, id: str) -> list[str]:
        return [*self.before[id], *self.after[id]]

    def around(self, chosen: Iterable[str], *, limit: int) -> list[str]:
        """The chosen nodes and those one hop away, at most `limit`; nodes that do not exist are left out."""
        known = [id for id in chosen if id in self.nodes]
        found = dict.fromkeys(known[:limit])
        for id in known:
            for other in self.neighbours(id):
                if len(found) >= limit:
                    return list(found)
                found.setdefault(other)
        return list(found)

    def edges_between(self, ids: Iterable[str]) -> list[tuple[str, str]]:
        shown = dict.fromkeys(ids)
        return [(one, other) for one in shown for other in self.after[one] if other in shown]

    def search(self, text: str, *, limit: int) -> list[Node]:
        """Nodes whose names contain the text, those in trouble first."""
        wanted = text.lower()
        found = [node for name, node in self.topology.by_name if wanted in name]
        troubled = list(islice((node for node in found if node.id in self.causes), limit))
        others = islice((node for node in found if node.id not in self.causes), limit - len(troubled))
        return [*troubled, *others]


def _causes(topology: Topology, states: Mapping[str, State]) -> dict[str, Cause]:
    """What failed comes first: a node behind a failed and a late pipeline shows the failure."""
    found: dict[str, Cause] = {}
    for trouble in ("failed", "late"):
        # their own trouble first, then the nearest one
        sources = sorted(id for id, state in states.items() if state.trouble == trouble)
        pending = deque((id, Cause(trouble, topology.nodes[id].name)) for id in sources)
        while pending:
            id, cause = pending.popleft()
            if id in found:
                continue
            found[id] = cause
            pending.extend((other, cause) for other in topology.after[id])
    return found
