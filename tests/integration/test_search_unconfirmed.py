"""What a cluster has not done, though it answers; and requests that a run has abandoned."""

import json
import socket
import threading
from typing import Any

import pytest

from tests.helpers.running import run, succeed
from tests.helpers.search_cluster import INCREMENTAL, Cluster
from tests.helpers.search_proxy import Reply, Request
from vitrine.connectors.elasticsearch import ElasticsearchSettings
from vitrine.connectors.elasticsearch.client import Requests
from vitrine.errors import LeaseLost, TransientError

QUARANTINE: dict[str, Any] = {**INCREMENTAL, "options": {"horizon_margin": "0s", "on_reject": "quarantine"}}
UPSERT: dict[str, Any] = {**INCREMENTAL, "options": {"horizon_margin": "0s", "write": "upsert"}}


# -- changes of indexes -----------------------------------------------------------------------------------------------


@pytest.mark.promise("I14")
@pytest.mark.parametrize("path", ["_aliases", "_settings", "_mapping"])
@pytest.mark.parametrize("body", [{"acknowledged": False}, {}], ids=["not acknowledged", "empty"])
def test_a_load_is_not_published_by_a_change_that_the_cluster_has_not_confirmed(
    cluster: Cluster, path: str, body: dict[str, Any]
) -> None:
    cluster.fill(1, 3)
    pipeline = cluster.create()
    succeed(cluster.connection, cluster.settings, pipeline)
    live = cluster.search.live(cluster.name)
    cluster.fill(4, 5)

    def ignore(request: Request) -> Reply | None:
        is_change = request.method in ("PUT", "POST") and request.path.partition("?")[0].endswith(path)
        return Reply(200, body) if is_change else None

    with cluster.proxy.following(ignore):
        executed = run(cluster.connection, cluster.settings, pipeline, retry=True)
    assert isinstance(executed.error, TransientError)
    assert cluster.search.live(cluster.name) == live
    succeed(cluster.connection, cluster.settings, pipeline, resume=True)
    assert cluster.search.live(cluster.name) != live
    assert cluster.ids() == ["1", "2", "3", "4", "5"]


# -- what is wrong with the index is not wrong with a document --------------------------------------------------------


@pytest.mark.promise("F1")
@pytest.mark.parametrize("how", ["ingest pipeline", "write alias"])
def test_documents_are_not_rejects_because_their_index_is_set_up_wrongly(cluster: Cluster, how: str) -> None:
    cluster.fill(1, 3)
    pipeline = cluster.create(**QUARANTINE)
    succeed(cluster.connection, cluster.settings, pipeline)
    live = cluster.search.live(cluster.name)
    if how == "ingest pipeline":
        cluster.search.ask("PUT", f"{live}/_settings", {"index.default_pipeline": "missing"})
    else:
        other = f"{cluster.name}-other"
        cluster.search.ask("PUT", other, {"aliases": {f"{live}__write": {"is_hidden": True}}})
    cluster.fill(4, 6)
    executed = run(cluster.connection, cluster.settings, pipeline)
    assert executed.error is not None
    assert executed.error.code == "SINK_REFUSED"
    assert cluster.rejected(pipeline) == {}
    if how == "ingest pipeline":
        cluster.search.ask("PUT", f"{live}/_settings", {"index.default_pipeline": None})
    else:
        cluster.search.ask("DELETE", f"{cluster.name}-other")
    succeed(cluster.connection, cluster.settings, pipeline)
    assert len(cluster.ids()) == 6


@pytest.mark.promise("F8")
def test_an_index_that_is_closed_during_a_run_is_a_passing_failure(cluster: Cluster) -> None:
    cluster.fill(1, 3)
    pipeline = cluster.create(**QUARANTINE)
    succeed(cluster.connection, cluster.settings, pipeline)
    live = cluster.search.live(cluster.name)
    cluster.fill(4, 6)

    def close(request: Request) -> Reply:
        cluster.search.ask("POST", f"{live}/_close")
        return request.forward()

    with cluster.proxy.following(cluster.proxy.once(close)):
        executed = run(cluster.connection, cluster.settings, pipeline, retry=True)
    assert isinstance(executed.error, TransientError)
    assert executed.error.code == "SINK_BLOCKED"
    assert "its index is closed; open it" in str(executed.error)
    assert cluster.rejected(pipeline) == {}
    cluster.search.ask("POST", f"{live}/_open")
    succeed(cluster.connection, cluster.settings, pipeline, resume=True)
    assert len(cluster.ids()) == 6


# -- documents that other programs extend -----------------------------------------------------------------------------


def test_a_document_that_another_program_changes_meanwhile_is_sent_again(cluster: Cluster) -> None:
    """Without a version of ours a conflict is no sign of a newer run."""
    cluster.fill(1, 3)
    pipeline = cluster.create(**UPSERT)
    succeed(cluster.connection, cluster.settings, pipeline)
    loaded = len(cluster.proxy.bulks)
    cluster.fill(4, 6)

    def conflict(request: Request) -> Reply:
        content = json.loads(request.forward(b"".join(request.lines[2:])).data())
        error = {"type": "version_conflict_engine_exception", "reason": "[1]: version conflict"}
        content["items"].insert(0, {"update": {"status": 409, "error": error}})
        return Reply(200, content)

    with cluster.proxy.following(cluster.proxy.once(conflict)):
        succeed(cluster.connection, cluster.settings, pipeline)
    assert [len(request.lines) for request in cluster.proxy.bulks[loaded:]] == [6, 2]
    assert cluster.ids() == ["1", "2", "3", "4", "5", "6"]


# -- a lease that ends while a request is sent ------------------------------------------------------------------------


class EndingLease:
    """A lease that ends when the test says so."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def seconds_left(self) -> float:
        if self.ended.is_set():
            raise LeaseLost("the lease has ended")
        return 60.0

    def wait(self, seconds: float) -> None:
        raise AssertionError("nothing waits here")


@pytest.mark.promise("A8")
def test_a_request_that_is_being_sent_when_the_lease_ends_never_arrives_as_a_whole() -> None:
    lease, body = EndingLease(), b"x" * 50_000_000
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        requests = Requests(ElasticsearchSettings.model_validate({"url": url}), "es:x", lease)
        headers = {"content-type": "application/x-ndjson", "accept": "application/json"}
        reply = requests.start(lambda client: client.perform_request("POST", "/x/_bulk", headers=headers, body=body))
        server, _ = listener.accept()
        with server:
            server.settimeout(30)
            received = len(server.recv(1))
            lease.ended.set()
            with pytest.raises(LeaseLost):
                requests.wait(reply)
            while received < len(body) and (part := server.recv(1 << 20)):
                received += len(part)
        requests.close()
    assert received < len(body)
