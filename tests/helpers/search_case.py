"""The case of Elasticsearch: indexes seen, changed and broken from outside."""

import itertools
import json
import os
import urllib.request
from collections.abc import Collection, Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote

from tests.helpers.search_proxy import SearchProxy
from vitrine.connectors.elasticsearch.documents import id_of
from vitrine.connectors.elasticsearch.encoding import MISSING, NumberText, text_of_value
from vitrine.core.rows import Column, Key
from vitrine_testing import REFUSED, SAMPLES, Fault, Texts

_numbers = itertools.count(1)
PAGE = 10_000


class Search:
    """A cluster, asked without the client and the connector."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, method: str, path: str, body: Any = None, *, missing: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.url}/{path}", data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return json.loads(
                    reply.read(),
                    parse_float=NumberText,
                    parse_int=lambda text: int(text) if text != "-0" else NumberText(text),
                )
        except HTTPError as exc:
            if exc.code == 404 and missing is not None:
                return missing
            raise AssertionError(f"{method} {path}: {exc.code} {exc.read().decode()[:300]}") from exc

    def hits(self, name: str) -> list[dict[str, Any]]:
        """Every document of an alias or index; none where it does not exist."""
        self.ask("POST", f"{name}/_refresh", missing={})
        found = self.ask("POST", f"{name}/_search", {"size": PAGE, "version": True}, missing={"hits": {"hits": []}})
        return found["hits"]["hits"]

    def documents(self, name: str) -> dict[str, dict[str, Any]]:
        return {hit["_id"]: hit["_source"] for hit in self.hits(name)}

    def indexes(self, name: str) -> dict[str, list[str]]:
        """The indexes behind a target, with their aliases."""
        found = self.ask("GET", f"{name}__g*?expand_wildcards=all", missing={})
        return {index: sorted(described["aliases"]) for index, described in sorted(found.items())}

    def live(self, name: str) -> str:
        (index,) = self.ask("GET", f"_alias/{name}")
        return index

    def remove(self, name: str) -> None:
        for index in self.indexes(name):
            self.ask("DELETE", index, missing={})


class SearchSinkCase:
    """A SinkCase; runs reach the cluster through a proxy."""

    connector = "elasticsearch"
    types: Collection[str] = [name for name in SAMPLES if name != "json"]
    refused: Mapping[str, Collection[str]] = {
        "real": ("NaN",),
        "double precision": ("Infinity",),
        "numeric": ("NaN",),
        "date": ("0044-03-15 BC", "infinity"),
        "timestamp without time zone": ("-infinity",),
        "timestamp with time zone": ("infinity",),
        "integer[]": ("[0:1]={5,6}",),
    }

    def __init__(self, url: str, proxy: SearchProxy | None) -> None:
        self.search = Search(url)
        self._proxy = proxy
        self._targets: list[str] = []

    def settings(self) -> Mapping[str, str]:
        url = self.search.url if self._proxy is None else self._proxy.url
        return {"VITRINE_ELASTICSEARCH_URL": url, "VITRINE_ELASTICSEARCH_TAKEOVER_GRACE": "0s"}

    def target(self) -> str:
        self._targets.append(f"t{os.getpid()}_{next(_numbers)}")
        return f"es:{self._targets[-1]}"

    def rows(self, target: str) -> dict[Key, Texts]:
        name = _name(target)
        hits = self.search.hits(name)
        if not hits:
            return {}
        (mapping,) = self.search.ask("GET", f"{name}/_mapping").values()
        noted = mapping["mappings"]["_meta"]["vitrine"]
        columns = [Column(column, type_name) for column, type_name in noted["columns"].items()]
        rows = [
            {column.name: text_of_value(hit["_source"].get(column.name, MISSING), column) for column in columns}
            for hit in hits
        ]
        return {tuple(row[one] or "" for one in noted["key"]): row for row in rows}

    def change(self, target: str, key: Key, row: Texts | None) -> None:
        path = quote(id_of(key), safe="")
        if row is None:
            self.search.ask("DELETE", f"{_name(target)}/_doc/{path}?refresh=true")
        else:
            self.search.ask("POST", f"{_name(target)}/_update/{path}?refresh=true", {"doc": {"note": row["note"]}})

    @contextmanager
    def fault(self, target: str, fault: Fault) -> Generator[None]:
        with ExitStack() as ends:
            self._begin(target, fault, ends)
            yield

    def close(self) -> None:
        for name in self._targets:
            self.search.remove(name)

    def _begin(self, target: str, fault: Fault, ends: ExitStack) -> None:
        if fault is Fault.TARGET_GONE:
            self.search.remove(_name(target))
            return
        proxy = self._proxy
        assert proxy is not None, "this test needs the proxy"
        match fault:
            case Fault.DOWN:
                ends.enter_context(proxy.down())
            case Fault.REPLY_LOST:
                ends.enter_context(proxy.losing_reply())
            case Fault.APPLIED_LATE:
                ends.enter_context(proxy.applying_late())
            case Fault.ONE_ROW_REFUSED:
                ends.enter_context(proxy.refusing(REFUSED))
            case Fault.BLOCKED:
                ends.enter_context(proxy.blocked())


def _name(target: str) -> str:
    return target.removeprefix("es:")
