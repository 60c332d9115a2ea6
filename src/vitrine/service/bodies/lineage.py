"""The graph of tables and pipelines: what feeds what."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from vitrine.status import Status

Kind = Literal["table", "reader", "pipeline"]
Trouble = Literal["failed", "late"]


@dataclass(frozen=True)
class Node:
    """A table, an index, a Python reader or a pipeline."""

    id: str
    kind: Kind
    name: str
    place: str = ""  # the source of a table, unless it is a table of the store's database
    status: Status | None = None  # of a pipeline
    enabled: bool = True
    trouble: Trouble | None = None  # of the pipeline itself


@dataclass(frozen=True)
class Cause:
    """A failed or late pipeline before a node."""

    trouble: Trouble
    pipeline: str


@dataclass(frozen=True)
class Graph:
    """Every node with those directly before and after it."""

    nodes: Mapping[str, Node]
    before: Mapping[str, Sequence[str]]
    after: Mapping[str, Sequence[str]]
    causes: Mapping[str, Cause]  # of nodes behind a failed or late pipeline, and of these pipelines themselves
    unread: int = 0  # pipelines whose query is not parsed yet
    is_cut: bool = False  # the store has more pipelines than are shown

    @classmethod
    def of(cls, nodes: Iterable[Node], edges: Iterable[tuple[str, str]], *, unread: int, is_cut: bool) -> "Graph":
        known = {node.id: node for node in nodes}
        before: dict[str, list[str]] = {id: [] for id in known}
        after: dict[str, list[str]] = {id: [] for id in known}
        for one, other in sorted(set(edges)):
            after[one].append(other)
            before[other].append(one)
        return cls(known, before, after, _causes(known, after), unread, is_cut)

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
        found = [node for node in self.nodes.values() if wanted in node.name.lower()]
        found.sort(key=lambda node: (node.id not in self.causes, node.name, node.kind))
        return found[:limit]


def _causes(nodes: Mapping[str, Node], after: Mapping[str, Sequence[str]]) -> dict[str, Cause]:
    """What failed comes first: a node behind a failed and a late pipeline shows the failure."""
    found: dict[str, Cause] = {}
    for trouble in ("failed", "late"):
        # their own trouble first, then the nearest one
        sources = sorted(node.id for node in nodes.values() if node.trouble == trouble)
        pending = deque((id, Cause(trouble, nodes[id].name)) for id in sources)
        while pending:
            id, cause = pending.popleft()
            if id in found:
                continue
            found[id] = cause
            pending.extend((other, cause) for other in after[id])
    return found
