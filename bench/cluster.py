"""An Elasticsearch without its client library: what the benchmark asks it."""

import hashlib
import http.client
import json
from typing import Any
from urllib.parse import urlsplit


class Cluster:
    """The server without a client library."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 9200)

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(*self._address, timeout=120)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        connection = self.connection()
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        content = json.loads(reply.read())
        connection.close()
        if reply.status >= 400 and reply.status != 404:
            raise RuntimeError(f"{method} {path}: {reply.status} {content}")
        return content

    def remove(self, name: str) -> None:
        for index in self.ask("GET", f"/{name}__g*,{name}?ignore_unavailable=true&expand_wildcards=all"):
            self.ask("DELETE", f"/{index}")

    def definition(self, alias: str) -> dict[str, Any]:
        """Settings and mappings as a load has them while it writes."""
        (described,) = self.ask("GET", f"/{alias}").values()
        mappings = {name: value for name, value in described["mappings"].items() if name != "_meta"}
        settings = {"index.refresh_interval": "-1", "index.number_of_replicas": 0, "index.gc_deletes": "1h"}
        return {"settings": settings, "mappings": mappings}

    def digest(self, name: str) -> tuple[int, int]:
        """Count and sum of the hashes of all documents."""
        view = self.ask("POST", f"/{name}/_pit?keep_alive=2m")["id"]
        count = total = 0
        after: list[Any] = []
        while True:
            body = {"size": 5000, "sort": ["_shard_doc"], "pit": {"id": view}, "track_total_hits": False}
            hits = self.ask("POST", "/_search", body | ({"search_after": after} if after else {}))["hits"]["hits"]
            if not hits:
                return count, total
            for hit in hits:
                image = json.dumps([hit["_id"], hit["_source"]], sort_keys=True).encode()
                total += int.from_bytes(hashlib.sha256(image).digest()[:8], "big")
            count, after = count + len(hits), hits[-1]["sort"]
