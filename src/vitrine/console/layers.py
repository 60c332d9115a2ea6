"""Places the nodes of a lineage in columns, so that every arrow points to the right."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vitrine.service.bodies.lineage import Graph

SWEEPS = 4


@dataclass(frozen=True)
class Placed:
    """Column and row, counted from 0."""

    id: str
    column: int
    row: int


def place(graph: Graph, ids: Sequence[str]) -> list[Placed]:
    """Tables and pipelines alternate; in a cycle one arrow points to the left."""
    shown = set(ids)
    before = {id: [one for one in graph.before[id] if one in shown] for id in ids}
    after = {id: [one for one in graph.after[id] if one in shown] for id in ids}
    columns = _columns(graph, ids, before)
    rows = _rows(graph, columns, before, after)
    return [Placed(id, columns[id], rows[id]) for id in ids]


def _columns(graph: Graph, ids: Sequence[str], before: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Behind the longest way to the node."""
    columns: dict[str, int] = {}
    under_way: set[str] = set()

    def column(id: str) -> int:
        if id not in columns:
            under_way.add(id)
            ahead = [column(one) for one in before[id] if one not in under_way]
            under_way.discard(id)
            columns[id] = max(ahead) + 1 if ahead else int(graph.nodes[id].kind == "pipeline")
        return columns[id]

    for id in ids:
        column(id)
    first = min(columns.values(), default=0)
    return {id: number - first for id, number in columns.items()}


def _rows(
    graph: Graph, columns: Mapping[str, int], before: Mapping[str, Sequence[str]], after: Mapping[str, Sequence[str]]
) -> dict[str, int]:
    """By name at first, then each column by the middle of its neighbours: fewer arrows cross."""
    layers: dict[int, list[str]] = {}
    for id in sorted(columns, key=lambda one: graph.nodes[one].name):
        layers.setdefault(columns[id], []).append(id)
    rows = {id: row for layer in layers.values() for row, id in enumerate(layer)}
    for sweep in range(SWEEPS):
        near = before if sweep % 2 == 0 else after
        for number in sorted(layers, reverse=sweep % 2 == 1):
            layer = layers[number]
            middles = {id: _middle(rows, near[id], rows[id]) for id in layer}
            layer.sort(key=lambda id, middles=middles: middles[id])
            rows |= {id: row for row, id in enumerate(layer)}
    return rows


def _middle(rows: Mapping[str, int], near: Sequence[str], own: int) -> float:
    return sum(rows[one] for one in near) / len(near) if near else own
