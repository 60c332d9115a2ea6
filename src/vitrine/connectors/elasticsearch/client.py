"""Requests to the cluster under the lease of a run, with errors in the groups of Vitrine."""

import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit
from weakref import WeakSet

import elastic_transport
import elasticsearch
from elastic_transport import NodeConfig, ObjectApiResponse, Urllib3HttpNode
from elasticsearch import ApiError, Elasticsearch, UnsupportedProductError
from elasticsearch.serializer import CompatibilityModeJsonSerializer
from urllib3.exceptions import NewConnectionError

from vitrine import urls
from vitrine.connectors.elasticsearch import ElasticsearchOptions, ElasticsearchSettings
from vitrine.connectors.elasticsearch.encoding import NumberText
from vitrine.core.protocols import Lease
from vitrine.definition.context import SinkJob
from vitrine.errors import ConfigError, DataError, RelationMissing, TransientError, VitrineError


class EndingNode(Urllib3HttpNode):
    """`close` ends requests in progress as well; the client's own timeouts start again with every part of a reply."""

    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        self._connections: WeakSet[Any] = WeakSet()
        self._lock = threading.Lock()
        self._is_closed = False
        node = self

        class Connection(self.pool.ConnectionCls):  # pyright: ignore[reportUntypedBaseClass, reportGeneralTypeIssues]
            def connect(self) -> None:
                super().connect()  # pyright: ignore[reportUnknownMemberType]
                node._opened(self)

        self.pool.ConnectionCls = Connection  # pyright: ignore[reportAttributeAccessIssue]

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            connections = list(self._connections)
        super().close()
        for connection in connections:
            _end(connection)

    def _opened(self, connection: Any) -> None:
        with self._lock:
            self._connections.add(connection)
            if self._is_closed:
                _end(connection)


def _end(connection: Any) -> None:
    """The cluster drops a request that it has not received as a whole."""
    opened: socket.socket | None = connection.sock
    if opened is not None:
        with suppress(OSError):
            socket.socket.shutdown(opened, socket.SHUT_RDWR)  # that of TLS would wait for the other side


Job = SinkJob[ElasticsearchOptions, ElasticsearchSettings]
Reply = TypeVar("Reply")

POLL_SECONDS = 0.05
CLOSE_SECONDS = 1.0
_VIEW_GONE = frozenset({"search_phase_execution_exception", "search_context_missing_exception"})
"""Errors of a search in a point in time that the cluster no longer has; their status is that of a missing index."""

_PREVIEW = re.compile(r"\.? Preview of field's value:.*", re.DOTALL)
_QUOTED = re.compile(r"""(["'`]).*?\1""", re.DOTALL)


class ExactJson(CompatibilityModeJsonSerializer):
    """Reads numbers without losing a digit."""

    def __init__(self) -> None:
        super().__init__()
        self._read = threading.local()

    @property
    def size(self) -> int:
        """Bytes of the last reply that this thread has read."""
        return getattr(self._read, "size", 0)

    def json_loads(self, data: Any) -> Any:
        self._read.size = len(data)
        # `-0` is a number of its own, and rare: a function per integer takes most of the time
        parse_int = _integer if b"-0" in data else None
        return json.loads(data, parse_float=NumberText, parse_int=parse_int)


def _integer(text: str) -> int | NumberText:
    return int(text) if text != "-0" else NumberText(text)


class ReadyBody(elastic_transport.Serializer):
    """Sends a body as it is: documents are serialised before."""

    mimetype = "application/vnd.elasticsearch+x-ndjson"

    def dumps(self, data: Any) -> bytes:
        return data


class Requests:
    """What all requests of a sink share. None starts after the lease has ended, or outlasts it."""

    def __init__(self, settings: ElasticsearchSettings, target: str, lease: Lease, in_flight: int = 1) -> None:
        if settings.url is None:
            raise ConfigError(f"target {target} needs a cluster: {settings.needs}", code="SETTINGS")
        self.target = target
        self.lease = lease
        self._settings = settings
        self._hosts = urls.parse_http(settings.url.get_secret_value())
        self._in_flight = in_flight
        self._json = ExactJson()
        self._opened: Elasticsearch | None = None
        self._senders = _Senders()
        self._cancelled = threading.Event()

    @property
    def is_local(self) -> bool:
        """Whether the cluster is on this machine."""
        return all(urlsplit(host).hostname in ("localhost", "127.0.0.1", "::1") for host in self._hosts)

    def check(self) -> None:
        """Before each request."""
        self.lease.seconds_left()
        if self._cancelled.is_set():
            raise TransientError(f"target {self.target}: the request was cancelled")

    def call(self, work: Callable[[Elasticsearch], Reply]) -> Reply:
        """The reply to one request, or its error."""
        return self.wait(self.start(work))

    def measured(self, work: Callable[[Elasticsearch], Reply]) -> tuple[Reply, int]:
        """The same with the size of the reply in bytes."""
        return self.call(lambda client: (work(client), self._json.size))

    def start(self, work: Callable[[Elasticsearch], Reply]) -> "Future[Reply]":
        """Send a request in another thread, so that it can be abandoned."""
        self.check()
        left = self.lease.seconds_left()
        client = self._client().options(request_timeout=min(self._settings.request_timeout.total_seconds(), left))
        return self._senders.submit(lambda: self._send(work, client))

    def _send(self, work: Callable[[Elasticsearch], Reply], client: Elasticsearch) -> Reply:
        """To another node if one of several takes no connection: the request was not sent then."""
        for _ in self._hosts[1:]:
            try:
                return work(client)
            except elastic_transport.ConnectionError as exc:
                if not isinstance(exc.__cause__, NewConnectionError):
                    raise
                self.lease.seconds_left()
        return work(client)

    def wait(self, reply: "Future[Reply]") -> Reply:
        self.first_of([reply])
        with translated(self.target):
            return reply.result()

    def first_of(self, replies: "Iterable[Future[Reply]]") -> "Future[Reply]":
        """One that has its reply or its error."""
        while True:
            done, _ = wait_for(replies, POLL_SECONDS, FIRST_COMPLETED)
            if done:
                return done.pop()
            self._check_waiting()

    def change(self, work: Callable[[Elasticsearch], ObjectApiResponse[Any]]) -> None:
        """Change an index or an alias; TransientError if the cluster does not confirm that it has."""
        reply = self.call(lambda client: work(client).body)
        if self.member(reply, "acknowledged") is not True:
            raise TransientError(f"target {self.target}: the cluster has not confirmed a change of an index in time")

    def _check_waiting(self) -> None:
        """A request that the run has abandoned must not reach the cluster later."""
        try:
            self.check()
        except VitrineError:
            self.abandon()
            raise

    def member(self, reply: Any, *names: str) -> Any:
        """A member of a reply; a reply without it was changed or cut on its way."""
        for name in names:
            found = self.object(reply)
            if name not in found:
                raise TransientError(f"target {self.target}: the reply of the cluster is not complete (no '{name}')")
            reply = found[name]
        return reply

    def object(self, reply: Any) -> Mapping[str, Any]:
        """The reply as a JSON object; another one was not written by the cluster."""
        if not isinstance(reply, Mapping):
            raise TransientError(f"target {self.target}: the reply of the cluster is not a JSON object")
        return cast(Mapping[str, Any], reply)

    def refuse_partial(self, reply: Any) -> None:
        """A shard that does not answer would look like documents that are not there."""
        shards = self.object(self.member(reply, "_shards"))
        if failed := int(shards.get("failed", 0)):
            raise TransientError(
                f"target {self.target}: {failed} of {shards.get('total')} shards of an index do not answer"
            )

    def conflict(self) -> VitrineError:
        """A refused version is never a success: either the lease is lost, or versions have gone backwards."""
        self.lease.seconds_left()
        return ConfigError(
            f"target {self.target} has documents with a higher version than this run writes: another installation"
            " writes to it, or the store was restored from a backup; write to another target, or delete this one and"
            " reset the state",
            code="VERSION_REGRESSION",
        )

    def abandon(self) -> None:
        """End the requests in flight; the next one opens new connections."""
        self._disconnect()

    def cancel(self) -> None:
        self._cancelled.set()

    def reopen(self) -> None:
        """A cancelled call has ended: the next one may start."""
        self._cancelled.clear()

    def close(self) -> None:
        self._disconnect()
        self._senders.close()

    def _disconnect(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _client(self) -> Elasticsearch:
        if self._opened is None:
            settings = self._settings
            given: dict[str, Any] = {}
            if settings.api_key is not None:
                given["api_key"] = settings.api_key.get_secret_value()
            elif settings.user is not None and settings.password is not None:
                given["basic_auth"] = (settings.user, settings.password.get_secret_value())
            if any(host.startswith("https:") for host in self._hosts):
                # guarantee: F9
                given |= {"verify_certs": settings.verify_certificates, "ssl_show_warn": False}
                if settings.ca_file is not None and settings.verify_certificates:
                    given["ca_certs"] = _checked_ca(settings.ca_file)
            exact, ready = self._json, ReadyBody()
            try:
                self._opened = Elasticsearch(
                    self._hosts,
                    serializers={exact.mimetype: exact, ready.mimetype: ready, "application/json": exact},
                    connections_per_node=self._in_flight + 1,
                    node_class=EndingNode,
                    max_retries=0,
                    retry_on_timeout=False,
                    http_compress=False,
                    **given,
                )
            except ValueError as exc:
                raise ConfigError(
                    "VITRINE_ELASTICSEARCH_URL is not an address such as https://search.example.com:9200",
                    code="SETTINGS",
                ) from exc
        return self._opened


def _checked_ca(path: Path) -> str:
    """A file that cannot be used would look like a cluster that is unavailable."""
    try:
        ssl.create_default_context(cafile=path)
    except OSError as exc:
        raise ConfigError(
            f"VITRINE_ELASTICSEARCH_CA_FILE: {path} has no certificate that can be read ({exc.strerror or exc}); give a"
            " PEM file",
            code="SETTINGS",
        ) from exc
    return str(path)


class _Senders:
    """Threads that send requests; one that is abandoned does not keep the process alive."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = 0
        self._lock = threading.Lock()

    def submit(self, work: Callable[[], Reply]) -> "Future[Reply]":
        reply: Future[Reply] = Future()

        def send() -> None:
            try:
                reply.set_result(work())
            except BaseException as exc:  # noqa: BLE001 – raised again by the thread that waits for the reply
                reply.set_exception(exc)

        with self._lock:
            self._busy += 1
            if self._busy > len(self._threads):
                thread = threading.Thread(target=self._run, name="vitrine-elasticsearch", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._work.put(send)
        return reply

    def close(self) -> None:
        for _ in self._threads:
            self._work.put(None)
        until = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._threads = []

    def _run(self) -> None:
        while (send := self._work.get()) is not None:
            send()
            with self._lock:
                self._busy -= 1


# -- errors -----------------------------------------------------------------------------------------------------------


@contextmanager
def translated(target: str) -> Generator[None]:
    """Errors of the client in the groups of Vitrine; their texts may quote addresses and values, so they are not
    shown."""
    try:
        yield
    except UnsupportedProductError as exc:
        raise ConfigError(
            f"target {target}: the server is not Elasticsearch 8; OpenSearch is not supported, because its client and"
            " its versions differ",
            code="SINK_PRODUCT",
        ) from exc
    except ApiError as exc:
        raise error_of(target, exc.status_code, exc.body) from exc
    except elastic_transport.TlsError as exc:
        raise _error_of_tls(target, exc) from exc
    except elastic_transport.ConnectionTimeout as exc:
        raise TransientError(
            f"target {target}: the cluster did not answer in time; if it happens again, send less at once"
            " (options.bulk_documents, bulk_bytes), or allow more time (VITRINE_LEASE_TTL, and"
            " VITRINE_ELASTICSEARCH_REQUEST_TIMEOUT)"
        ) from exc
    except elastic_transport.TransportError as exc:
        # guarantee: F4
        raise TransientError(f"target {target}: the cluster is unavailable ({type(exc).__name__})") from exc
    except RecursionError as exc:
        raise DataError(
            f"target {target}: a document is nested too deeply to be read; store such JSON as text", code="SINK_REFUSED"
        ) from exc
    except (elasticsearch.SerializationError, ValueError) as exc:
        raise TransientError(f"target {target}: the reply of the cluster is not complete") from exc


def _error_of_tls(target: str, error: elastic_transport.TlsError) -> VitrineError:
    """Certificates and protocols are settings; a connection that ends during the handshake may work the next time."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return ConfigError(
            f"target {target}: the certificate of the cluster is not trusted ({cause.verify_message}); set"
            " VITRINE_ELASTICSEARCH_CA_FILE, and use the name that is in the certificate",
            code="SINK_AUTH",
        )
    if isinstance(cause, ssl.SSLError) and cause.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"):
        return ConfigError(
            f"target {target}: the server does not answer with TLS; write http:// in VITRINE_ELASTICSEARCH_URL, or"
            " correct the port",
            code="SETTINGS",
        )
    return TransientError(f"target {target}: the cluster is unavailable (the TLS connection failed)")


def error_of(target: str, status: int, body: Any) -> VitrineError:
    """The error for a status; used for whole requests and for single documents."""
    kind, reason = described(body)
    if status in (400, 404) and not kind and (not reason or reason.startswith("no handler found")):
        return ConfigError(
            f"target {target}: the server has no API of Elasticsearch at this address (HTTP {status}); correct"
            " VITRINE_ELASTICSEARCH_URL",
            code="SETTINGS",
        )
    if status == 404 and kind in _VIEW_GONE:
        return TransientError(
            f"target {target}: the cluster has closed a view of the index that was being read: it was restarted, or"
            " the other side was slow; try again"
        )
    if status == 404 or kind == "index_not_found_exception":
        return RelationMissing(
            f"target {target} is missing: {reason}; reset the state to build it from the start", code="TARGET_SCHEMA"
        )
    # guarantee: F8
    if kind == "cluster_block_exception":
        remedy = "wait until it has recovered" if status == 503 else "free disk space, or remove the block"
        return TransientError(
            f"target {target}: the cluster refuses requests ({reason}); {remedy}", code="SINK_BLOCKED"
        )
    if kind == "index_closed_exception":
        return TransientError(f"target {target}: its index is closed; open it", code="SINK_BLOCKED")
    if status in (401, 403):
        return ConfigError(
            f"target {target}: the cluster refuses access ({reason or kind}); check the user, the API key and their"
            " privileges",
            code="SINK_AUTH",
        )
    if status in (408, 429) or status >= 500:
        return TransientError(f"target {target}: the cluster is overloaded or unavailable ({status} {kind})")
    return DataError(f"target {target}: {reason or kind}", code="SINK_REFUSED")


def described(body: Any) -> tuple[str, str]:
    """Type and reason of an error, without the values that the reason may quote."""
    found: Any = body.get("error", body) if isinstance(body, Mapping) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if isinstance(found, str):
        return "", _QUOTED.sub("…", found)
    if not isinstance(found, Mapping):
        return "", ""
    kind, reason = str(found.get("type", "")), str(found.get("reason", ""))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    return kind, _QUOTED.sub("…", _PREVIEW.sub("", reason))
