"""Lineage: source tables, pipelines, and the marts and indexes that they write."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from nicegui import ui

from vitrine.console import parts, texts
from vitrine.console.components import Lineage, Paths
from vitrine.console.pages.overview import address_of
from vitrine.console.viewer import HOME, NAVIGATION, Console, Entry, Viewer
from vitrine.operations import overview
from vitrine.operations.bodies.overview import Graph, Node

SWEEPS = 4


@dataclass(frozen=True)
class Placed:
    """Column and row, counted from 0."""

    id: str
    column: int
    row: int


def place_nodes(graph: Graph, ids: Sequence[str]) -> list[Placed]:
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


PATH = "/lineage"
MAX_NODES = 200
MAX_FOUND = 12
MAX_TEXT = 200
REFRESH_SECONDS = 6.0


def register(console: Console) -> None:
    NAVIGATION.append(Entry(texts.LINEAGE, PATH))

    @console.page(PATH, title=texts.LINEAGE)
    async def show(viewer: Viewer, request: Request) -> None:
        given = {name: request.query_params.get(name, "").replace("\0", "")[:MAX_TEXT] for name in ("node", "view")}
        await LineagePage(viewer, given["node"], is_list=given["view"] == "list").build()


class LineagePage:
    def __init__(self, viewer: Viewer, node: str, *, is_list: bool) -> None:
        self._viewer = viewer
        self._chosen = node
        self._opened = [node] if node else list[str]()  # the nodes whose neighbours are shown
        self._is_list = is_list
        self._search = ""
        self._graph: Graph | None = None
        self._detailed: Any = None

    async def build(self) -> None:
        with parts.box("v-toolbar"):
            search = ui.input(placeholder=texts.SEARCH_NODE).classes("v-search")
            search.props('dense outlined clearable debounce="200" type="search"')
            search.props["aria-label"] = texts.SEARCH_NODE
            search.on_value_change(lambda event: self._find(event.value or ""))
            with parts.box("v-row v-switch") as switch:
                switch.props["role"] = "group"
                switch.props["aria-label"] = texts.VIEW
                self._views = {
                    False: parts.button(texts.AS_GRAPH, lambda: self._switch(is_list=False)),
                    True: parts.button(texts.AS_LIST, lambda: self._switch(is_list=True)),
                }
            self._all = parts.button(texts.SHOW_ALL, self._show_everything)
            self._count = parts.text("", "v-muted")
        self._found = parts.box("v-groups")
        with parts.box("v-card") as self._card:
            self._lineage = Lineage(texts.LINEAGE_TEXTS, self._choose)
            self._paths = Paths(texts.LINEAGE_TEXTS)
            self._empty = parts.box()
        self._legend()
        self._details = parts.box("v-card v-pad v-details", tag="section")
        self._details.props["aria-label"] = texts.CHOSEN
        self._details.set_visibility(False)
        self._set_view()
        await self._viewer.watch("lineage", overview.read_lineage, self._show, every=REFRESH_SECONDS)

    def _legend(self) -> None:
        with parts.box("v-row v-legend"):
            parts.badge(texts.STATUS["FAILED"], "failed")
            parts.text(texts.LEGEND_FAILED, "v-muted")
            parts.badge(texts.LATE, "late")
            parts.text(texts.LEGEND_LATE, "v-muted")

    def _show(self, graph: Graph) -> None:
        self._graph = graph
        ids = self._shown_nodes(graph)
        self._lineage.set_visibility(bool(ids) and not self._is_list)
        self._paths.set_visibility(bool(ids) and self._is_list)
        if self._is_list:
            self._paths.show([_path(graph, id) for id in ids if graph.nodes[id].kind == "pipeline"])
        else:
            self._show_columns(graph, ids)
        self._empty.clear()
        if not ids:
            with self._empty:
                if graph.nodes:
                    parts.empty(texts.CHOOSE_NODE, texts.CHOOSE_NODE_HELP.format(count=len(graph.nodes)))
                else:
                    parts.empty(texts.NO_PIPELINES, texts.NO_PIPELINES_HELP, texts.FIRST_COMMANDS)
        self._all.set_visibility(bool(self._opened) and len(graph.nodes) <= MAX_NODES)
        parts.set_text(self._count, _summary(graph, ids))
        self._show_details(graph)
        if not ids and not self._search:
            self._show_found(graph, graph.search("", limit=MAX_FOUND))

    def _shown_nodes(self, graph: Graph) -> list[str]:
        if self._opened:
            return graph.around(self._opened, limit=MAX_NODES)
        return sorted(graph.nodes) if len(graph.nodes) <= MAX_NODES else []

    def _show_columns(self, graph: Graph, ids: list[str]) -> None:
        placed = place_nodes(graph, ids)
        shown = set(ids)
        nodes = [
            _node(graph, one.id, is_chosen=one.id == self._chosen)
            | {"column": one.column, "row": one.row, "more": sum(id not in shown for id in graph.neighbours(one.id))}
            for one in placed
        ]
        edges = [
            {"from": one, "to": other, "tone": _tone_of_edge(graph, one)} for one, other in graph.edges_between(ids)
        ]
        columns = [
            {"text": _head(graph, placed, number), "rows": sum(one.column == number for one in placed)}
            for number in range(max((one.column for one in placed), default=-1) + 1)
        ]
        self._lineage.show(nodes, edges, columns)

    def _choose(self, id: str) -> None:
        """Show what is around the node, too; a second click on it shows nothing else."""
        graph = self._graph
        if graph is None or id not in graph.nodes:
            return
        if self._chosen == id:
            self._opened = [id]
        elif self._opened:
            self._opened = [*(one for one in self._opened if one != id), id]
        self._chosen = id
        self._remember()
        self._show(graph)

    def _start_at(self, id: str) -> Callable[[], None]:
        def start() -> None:
            self._opened, self._chosen = [id], id
            self._remember()
            if self._graph is not None:
                self._show(self._graph)

        return start

    def _show_everything(self) -> None:
        self._opened, self._chosen = [], ""
        self._remember()
        if self._graph is not None:
            self._show(self._graph)

    def _switch(self, *, is_list: bool) -> None:
        self._is_list = is_list
        self._set_view()
        self._remember()
        if self._graph is not None:
            self._show(self._graph)

    def _set_view(self) -> None:
        for is_list, button in self._views.items():
            parts.set_attribute(button, "aria-pressed", "true" if is_list == self._is_list else "false")

    def _remember(self) -> None:
        given = {"node": self._chosen, "view": "list" if self._is_list else ""}
        query = urlencode({name: value for name, value in given.items() if value})
        address = f"{HOME}{PATH}?{query}" if query else f"{HOME}{PATH}"
        self._viewer.client.run_javascript(f"history.replaceState(null, '', {json.dumps(address)})")

    def _find(self, text: str) -> None:
        self._search = text.strip()[:MAX_TEXT]
        if self._graph is None:
            return
        found = self._graph.search(self._search, limit=MAX_FOUND) if self._search else []
        self._show_found(self._graph, found)
        if self._search and not found:
            with self._found:
                parts.text(texts.NO_NODE, "v-muted")

    def _show_found(self, graph: Graph, found: list[Node]) -> None:
        self._found.clear()
        with self._found:
            for node in found:
                with ui.element("button").classes("v-group").props('type="button"') as made:
                    parts.text(node.name, "v-group-name")
                    parts.text(_kind(graph, node), "v-muted")
                made.on("click", self._start_at(node.id), [])

    def _show_details(self, graph: Graph) -> None:
        node = graph.nodes.get(self._chosen)
        cause = graph.causes.get(self._chosen)
        near = (graph.before.get(self._chosen, ()), graph.after.get(self._chosen, ()))
        shown = (node, graph.state(self._chosen), cause, near)
        if self._detailed == shown:
            return
        self._detailed = shown
        self._details.clear()
        self._details.set_visibility(node is not None)
        if node is None:
            return
        with self._details:
            with parts.box("v-row"):
                parts.text(node.name, tag="h2")
                parts.text(_kind(graph, node), "v-muted")
                if node.kind == "pipeline":
                    parts.badge(_status(graph, node), _tone(graph, node))
                    parts.link(texts.OPEN_PIPELINE, address_of(node.name), "v-button")
            if cause is not None:
                why = parts.text(_because(node, cause.trouble, cause.pipeline), "v-cause-text", tag="p")
                why.props["data-tone"] = cause.trouble
            for label, ids in zip((texts.COMES_FROM, texts.GOES_TO), near, strict=True):
                with parts.box("v-row v-near"):
                    parts.text(label, "v-muted")
                    if not ids:
                        parts.text(texts.NOTHING)
                    for id in ids[:MAX_FOUND]:
                        parts.button(graph.nodes[id].name, self._start_at(id)).classes("v-chip")
                    if len(ids) > MAX_FOUND:
                        parts.text(texts.AND_MORE.format(count=len(ids) - MAX_FOUND), "v-muted")


def _node(graph: Graph, id: str, *, is_chosen: bool) -> dict[str, Any]:
    node = graph.nodes[id]
    cause = graph.causes.get(id)
    state = _status(graph, node) if node.kind == "pipeline" else _kind(graph, node)
    label = f"{node.name}: {state}"
    if cause is not None:
        label = f"{label}. {_because(node, cause.trouble, cause.pipeline)}"
    return {
        "id": id,
        "kind": node.kind,
        "name": node.name,
        "sub": state,
        "label": label,
        "tone": cause.trouble if cause else "",
        "chosen": is_chosen,
    }


def _path(graph: Graph, id: str) -> dict[str, Any]:
    node = graph.nodes[id]
    cause = graph.causes.get(id)

    def ends(ids: Any) -> list[dict[str, str]]:
        return [{"id": one, "name": _full_name(graph.nodes[one]), "tone": _tone_of_edge(graph, one)} for one in ids]

    return {
        "name": node.name,
        "href": address_of(node.name),
        "status": _status(graph, node),
        "tone": _tone(graph, node),
        "cause": _because(node, cause.trouble, cause.pipeline) if cause and cause.pipeline != node.name else "",
        "reads": ends(graph.before[id]),
        "writes": ends(graph.after[id]),
    }


def _tone_of_edge(graph: Graph, id: str) -> str:
    cause = graph.causes.get(id)
    return cause.trouble if cause else ""


def _tone(graph: Graph, node: Node) -> str:
    if not node.enabled:
        return "disabled"
    state = graph.state(node.id)
    return state.trouble or parts.tone_of(state.status)


def _status(graph: Graph, node: Node) -> str:
    if not node.enabled:
        return texts.DISABLED
    state = graph.state(node.id)
    return texts.LATE if state.trouble == "late" else texts.STATUS[state.status]


def _kind(graph: Graph, node: Node) -> str:
    if node.kind == "table" and node.place:
        return texts.TABLE_OF.format(source=node.place)
    if node.kind == "table" and graph.before[node.id]:
        return texts.INDEX if ":" in node.name else texts.MART_TABLE
    return texts.NODE_KINDS[node.kind]


def _full_name(node: Node) -> str:
    return f"{node.place}: {node.name}" if node.place else node.name


def _because(node: Node, trouble: str, pipeline: str) -> str:
    if node.name == pipeline and node.kind == "pipeline":
        return texts.OWN_TROUBLE[trouble]
    return texts.BEHIND[trouble].format(pipeline=pipeline)


def _head(graph: Graph, placed: list[Placed], column: int) -> str:
    kinds = {graph.nodes[one.id].kind for one in placed if one.column == column}
    if "pipeline" in kinds:
        return texts.PIPELINES
    written = any(graph.before[one.id] for one in placed if one.column == column)
    return texts.TARGETS if written else texts.SOURCE_TABLES


def _summary(graph: Graph, ids: list[str]) -> str:
    shown = texts.NODES_SHOWN.format(shown=len(ids), all=len(graph.nodes))
    notes = [texts.UNREAD.format(count=graph.topology.unread)] if graph.topology.unread else []
    if graph.topology.is_cut:
        notes.append(texts.LINEAGE_CUT)
    return " · ".join([shown, *notes])
