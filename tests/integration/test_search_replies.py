"""Replies of a cluster: refused documents, no room, no reply, no access; each document has its own outcome."""

import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.forked import claimed, dispatched, forked
from tests.helpers.processes import free_port
from tests.helpers.running import run, succeed
from tests.helpers.search_cluster import INCREMENTAL, Cluster
from tests.helpers.search_proxy import Lost, Reply, Request, SearchProxy
from tests.helpers.waiting import wait_until
from vitrine.compare import reconcile
from vitrine.connectors.elasticsearch import ElasticsearchSettings
from vitrine.connectors.elasticsearch.bulk import Action, Bulk, Limits, Operations
from vitrine.connectors.elasticsearch.client import Requests
from vitrine.core.rows import Reject
from vitrine.core.status import Status
from vitrine.errors import TransientError
from vitrine.operations import changes
from vitrine.plan import planner, validation
from vitrine.postgres import raw
from vitrine.settings import Settings
from vitrine.store import checkpoint, pipelines, queue, state

# -- single documents -------------------------------------------------------------------------------------------------


@pytest.mark.promise("F1")
def test_documents_that_the_mapping_refuses_are_quarantined_and_the_others_arrive(cluster: Cluster) -> None:
    cluster.fill(1, 1000)
    cluster.connection.execute("UPDATE content.numbers SET note = CASE WHEN id IN (5, 500, 999) THEN 'x' ELSE '7' END")
    index = {"mappings": {"properties": {"note": {"type": "integer"}}}}
    pipeline = cluster.create(options={"on_reject": "quarantine", "index": index})
    executed = succeed(cluster.connection, cluster.settings, pipeline)
    assert executed.counts.rejected == 3
    assert len(cluster.ids()) == 997
    reasons = cluster.rejected(pipeline)
    assert set(reasons) == {"5", "500", "999"}
    assert "failed to parse field [note] of type [integer]" in reasons["5"]
    assert f"index {cluster.name}, id 5" in reasons["5"]


def test_a_reject_that_is_nested_too_deeply_can_be_listed(cluster: Cluster) -> None:
    cluster.fill(1, 1)
    nested = """(repeat('{"a":', 1500) || '"]"' || repeat('}', 1500))::jsonb"""
    cluster.connection.execute(raw(f"ALTER TABLE content.numbers ADD tree jsonb DEFAULT {nested}"))
    index = {"mappings": {"properties": {"tree": {"type": "object", "dynamic": True}}}}
    options = {"on_reject": "quarantine", "index": index}
    pipeline = cluster.create("SELECT id, note, tree FROM content.numbers", options=options)
    succeed(cluster.connection, cluster.settings, pipeline)
    (reject,) = checkpoint.list_open(cluster.connection, pipeline.id)
    assert reject["key"] == "1"
    assert list(reject["row"]) == ["document"]


def test_a_reject_names_the_whole_index(cluster: Cluster) -> None:
    cluster.fill(1, 1)
    name = f"{cluster.name}__of__films"
    index = {"mappings": {"properties": {"note": {"type": "integer"}}}}
    options = {"on_reject": "quarantine", "index": index}
    pipeline = cluster.create(target_table=f"es:{name}", options=options)
    succeed(cluster.connection, cluster.settings, pipeline)
    assert cluster.rejected(pipeline)["1"].startswith(f"index {name}, id 1: ")


@pytest.mark.promise("K14")
@pytest.mark.parametrize(
    "fields", [{}, {"mode": "incremental", "incremental_key": "modified"}], ids=["full", "changes"]
)
def test_a_row_that_is_too_large_for_a_run_is_quarantined_and_the_others_become_documents(
    cluster: Cluster, fields: dict[str, Any]
) -> None:
    cluster.fill(1, 9)
    enlarged = "UPDATE content.numbers SET note = repeat(E'\\n', 700000) WHERE id IN (1, 5)"
    cluster.connection.execute(enlarged)
    section = {**cluster.settings.connectors, "postgres": {"max_row_bytes": "1MB"}}
    settings = cluster.settings.model_copy(update={"connectors": section})
    pipeline = cluster.create(batch_size=2, options={"on_reject": "quarantine"}, **fields)
    assert succeed(cluster.connection, settings, pipeline).counts.rejected == 2
    assert cluster.ids() == ["2", "3", "4", "6", "7", "8", "9"]
    reasons = cluster.rejected(pipeline)
    # a line break has two characters in the format in which rows are read
    assert {key: reason.split(",")[0] for key, reason in reasons.items()} == dict.fromkeys("15", "the row has 1.3MB")


@pytest.mark.promise("J18", "K14")
def test_a_load_keeps_the_document_of_a_row_that_has_become_too_large(cluster: Cluster) -> None:
    cluster.fill(1, 3)
    section = {**cluster.settings.connectors, "postgres": {"max_row_bytes": "1MB"}}
    settings = cluster.settings.model_copy(update={"connectors": section})
    pipeline = cluster.create(options={"on_reject": "quarantine"})
    succeed(cluster.connection, settings, pipeline)
    before = cluster.notes()
    cluster.connection.execute("UPDATE content.numbers SET note = repeat('x', 2000000) WHERE id = 2")
    assert succeed(cluster.connection, settings, pipeline).counts.rejected == 1
    assert cluster.notes() == before


@pytest.mark.promise("J18")
@pytest.mark.parametrize("dies", [False, True], ids=["", "after a publish that died"])
def test_a_load_keeps_the_last_good_document_of_a_rejected_row(cluster: Cluster, dies: bool) -> None:
    cluster = cluster.expiring_soon() if dies else cluster
    cluster.fill(1, 5)
    cluster.connection.execute("UPDATE content.numbers SET note = '7'")
    index = {"mappings": {"properties": {"note": {"type": "integer"}}}}
    pipeline = cluster.create(options={"on_reject": "quarantine", "index": index, "max_delete_ratio": 0.3})
    succeed(cluster.connection, cluster.settings, pipeline)
    cluster.connection.execute("UPDATE content.numbers SET note = CASE WHEN id < 3 THEN 'x' ELSE '8' END")
    cluster.connection.execute("DELETE FROM content.numbers WHERE id = 5")
    cluster.fill(6, 6)
    if dies:
        pipelines.request_run(cluster.connection, pipeline.id, trigger="api")
        claim = claimed(cluster.settings)
        with forked(lambda: dispatched(cluster.settings, claim), "before_alias=kill") as child:
            assert child.ended() < 0
        wait_until(lambda: queue.expire_leases(cluster.connection), what="the end of the lease")
    succeed(cluster.connection, cluster.settings, pipeline, resume=dies)
    assert cluster.notes() == {"1": "7", "2": "7", "3": "8", "4": "8"}
    assert set(cluster.rejected(pipeline)) == {"1", "2", "6"}
    cluster.connection.execute("UPDATE content.numbers SET note = '9'")
    succeed(cluster.connection, cluster.settings, pipeline)
    assert cluster.notes() == {"1": "9", "2": "9", "3": "9", "4": "9", "6": "9"}
    assert cluster.rejected(pipeline) == {}


@pytest.mark.promise("F1")
def test_a_refused_document_fails_the_run_where_the_policy_says_so(cluster: Cluster) -> None:
    cluster.fill(1, 100)
    index = {"mappings": {"properties": {"note": {"type": "integer"}}}}
    cluster.connection.execute("UPDATE content.numbers SET note = CASE WHEN id = 7 THEN 'secret' ELSE '7' END")
    pipeline = cluster.create(options={"index": index}, mode="incremental", incremental_key="modified")
    executed = run(cluster.connection, cluster.settings, pipeline)
    assert executed.error is not None
    assert "row 7 of" in str(executed.error)
    assert "failed to parse field [note]" in str(executed.error)
    assert "secret" not in str(executed.error)
    assert state.load_state(cluster.connection, pipeline.id).position.is_start
    assert pipelines.get(cluster.connection, pipeline.name).status is Status.FAILED


@pytest.mark.promise("F2")
def test_only_documents_that_found_no_room_are_sent_again(cluster: Cluster) -> None:
    cluster.fill(1, 50)
    pipeline = cluster.create()
    full = {"3", "4", "20", "21", "50"}

    def no_room(request: Request) -> Reply:
        """Five documents do not reach the server."""
        lines = request.lines
        pairs = [(json.loads(lines[at])["index"]["_id"], lines[at] + lines[at + 1]) for at in range(0, len(lines), 2)]
        reply = request.forward(b"".join(line for one, line in pairs if one not in full))
        content = json.loads(reply.data())
        for at, (one, _) in enumerate(pairs):
            if one in full:
                error = {"type": "es_rejected_execution_exception", "reason": "rejected"}
                content["items"].insert(at, {"index": {"status": 429, "error": error}})
        return Reply(200, content)

    with cluster.proxy.following(cluster.proxy.once(no_room)):
        succeed(cluster.connection, cluster.settings, pipeline)
    assert len(cluster.ids()) == 50
    sent = [[json.loads(line)["index"]["_id"] for line in request.lines[::2]] for request in cluster.proxy.bulks]
    assert [len(one) for one in sent] == [50, 5]
    assert set(sent[1]) == full


@pytest.mark.promise("F6")
def test_a_request_that_is_too_large_is_halved_down_to_one_document(cluster: Cluster) -> None:
    cluster.fill(1, 9)
    cluster.connection.execute("UPDATE content.numbers SET note = repeat('x', 5000) WHERE id = 6")
    pipeline = cluster.create(options={"on_reject": "quarantine"})

    def limited(request: Request) -> Reply | None:
        return Reply(413, {"error": "too large"}) if request.is_bulk and len(request.plain_body()) > 3000 else None

    with cluster.proxy.following(limited):
        succeed(cluster.connection, cluster.settings, pipeline)
    assert cluster.ids() == ["1", "2", "3", "4", "5", "7", "8", "9"]
    assert list(cluster.rejected(pipeline)) == ["6"]


@pytest.mark.promise("F7", "B4")
@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_a_document_with_a_higher_version_is_never_a_success(cluster: Cluster, mode: str) -> None:
    """As after a restore of the store: the tokens of earlier runs are given again."""
    cluster.fill(1, 5)
    fields = INCREMENTAL if mode == "incremental" else {"incremental_key": "modified"}
    pipeline = cluster.create(**fields)
    succeed(cluster.connection, cluster.settings, pipeline)
    live = cluster.search.live(cluster.name)
    higher = "version=4611686018427387904&version_type=external"
    cluster.search.ask("PUT", f"{live}/_doc/3?{higher}", {"id": 3, "note": "of a later run"})
    cluster.connection.execute("UPDATE content.numbers SET note = 'changed', modified = clock_timestamp() WHERE id = 3")
    executed = run(cluster.connection, cluster.settings, pipeline)
    if mode == "full":
        assert executed.error is None  # the load is built aside, without the document
        assert cluster.search.documents(cluster.name)["3"]["note"] == "changed"
        return
    assert executed.error is not None
    assert executed.error.code == "VERSION_REGRESSION"
    assert pipelines.get(cluster.connection, pipeline.name).status is Status.FAILED
    assert cluster.search.documents(cluster.name)["3"]["note"] == "of a later run"


@pytest.mark.promise("F12")
def test_deleting_a_document_that_is_not_there_is_a_success(cluster: Cluster) -> None:
    cluster.fill(1, 3)
    succeed(cluster.connection, cluster.settings, cluster.create())
    requests = Requests(cluster.settings.section("elasticsearch", ElasticsearchSettings), "es:x", planner.NoLease())
    bulk = Bulk(requests, f"{cluster.search.live(cluster.name)}__write", Limits(10, 1000, 1, compress=False), 1, fail)
    bulk.send(Operations(Action.DELETE, ["2", "77"], version=2**62))
    bulk.finish()
    requests.close()
    assert (bulk.outcome.deleted, bulk.outcome.rejects) == (1, [])
    assert cluster.ids() == ["1", "3"]


def fail(reject: Reject) -> None:
    raise AssertionError(reject)


def without_the_last(reply: Reply) -> Reply:
    content = json.loads(reply.data())
    content["items"].pop()
    return Reply(200, content)


BROKEN: Mapping[str, Callable[[Reply], Reply]] = {
    "one item missing": without_the_last,
    "cut": lambda reply: Reply(200, reply.data()[:-20]),
    "empty": lambda reply: Reply(200, b""),
    "a list": lambda reply: Reply(200, []),
    "no items": lambda reply: Reply(200, {"errors": False}),
    "empty items": lambda reply: Reply(200, {"items": [{}, {}, {}, {}, {}]}),
    "a page": lambda reply: Reply(200, b"<html>", {"content-type": "text/html"}),
}


@pytest.mark.promise("F5")
@pytest.mark.parametrize("how", BROKEN)
def test_a_reply_that_does_not_account_for_every_document_is_a_failure(cluster: Cluster, how: str) -> None:
    cluster.fill(1, 5)
    pipeline = cluster.create(**INCREMENTAL)
    with cluster.proxy.following(cluster.proxy.once(lambda request: BROKEN[how](request.forward()))):
        executed = run(cluster.connection, cluster.settings, pipeline)
    assert isinstance(executed.error, TransientError)
    assert state.load_state(cluster.connection, pipeline.id).position.is_start
    succeed(cluster.connection, cluster.settings, pipeline, waits=(0.01,))
    assert len(cluster.ids()) == 5


@pytest.mark.promise("F1")
@pytest.mark.parametrize(("write", "action"), [("index", "index"), ("upsert", "index"), ("upsert", "update")])
def test_a_document_that_an_ingest_pipeline_drops_is_a_reject(cluster: Cluster, write: str, action: str) -> None:
    """Its status is 200. Of an upsert, a cluster before 8.12.1 answers for the document that it would have created."""
    options = {"horizon_margin": "0s", "on_reject": "quarantine", "write": write}
    fields: dict[str, Any] = {**INCREMENTAL, "options": options}
    pipeline = cluster.create(**fields)
    succeed(cluster.connection, cluster.settings, pipeline)
    cluster.fill(1, 3)

    def drop_the_second(request: Request) -> Reply:
        lines = request.lines
        content = json.loads(request.forward(b"".join(lines[:2] + lines[4:])).data())
        content["items"].insert(1, {action: {"status": 200, "result": "noop"}})
        return Reply(200, content)

    with cluster.proxy.following(cluster.proxy.once(drop_the_second)):
        succeed(cluster.connection, cluster.settings, pipeline)
    assert cluster.ids() == ["1", "3"]
    assert "an ingest pipeline of the cluster dropped the document" in cluster.rejected(pipeline)["2"]


@pytest.mark.parametrize("moved", [{"_id": "2-moved"}, {"_index": "another"}])
def test_a_document_that_an_ingest_pipeline_stores_elsewhere_is_not_a_success(
    cluster: Cluster, moved: dict[str, str]
) -> None:
    cluster.fill(1, 3)
    cluster.search.ask("PUT", f"_ingest/pipeline/{cluster.name}", {"processors": []})
    index = {"settings": {"index.default_pipeline": cluster.name}}
    fields: dict[str, Any] = {**INCREMENTAL, "options": {"horizon_margin": "0s", "index": index}}
    pipeline = cluster.create(**fields)
    try:
        succeed(cluster.connection, cluster.settings, pipeline)
        warnings = validation.validate(pipeline.definition, cluster.settings).warnings
        assert any(f"has the ingest pipeline {cluster.name}" in text for text in warnings)
        cluster.connection.execute("UPDATE content.numbers SET note = 'changed', modified = clock_timestamp()")

        def move(request: Request) -> Reply:
            content = json.loads(request.forward().data())
            content["items"][1]["index"] |= moved
            return Reply(200, content)

        with cluster.proxy.following(cluster.proxy.once(move)):
            executed = run(cluster.connection, cluster.settings, pipeline)
        assert executed.error is not None
        assert executed.error.code == "INGEST_PIPELINE"
        assert cluster.name in str(executed.error)
        succeed(cluster.connection, cluster.settings, pipeline)
        assert set(cluster.notes().values()) == {"changed"}
    finally:
        cluster.search.remove(cluster.name)
        cluster.search.ask("DELETE", f"_ingest/pipeline/{cluster.name}")


def test_an_upsert_that_changes_nothing_is_a_success(cluster: Cluster) -> None:
    cluster.fill(1, 3)
    fields: dict[str, Any] = {**INCREMENTAL, "options": {"horizon_margin": "0s", "write": "upsert"}}
    pipeline = cluster.create(**fields)
    succeed(cluster.connection, cluster.settings, pipeline)
    changes.change_state(cluster.connection, pipeline.name)  # everything is sent again
    succeed(cluster.connection, cluster.settings, pipeline)
    assert cluster.rejected(pipeline) == {}
    assert [json.loads(one)["update"]["_id"] for one in cluster.proxy.bulks[-1].lines[::2]] == ["1", "2", "3"]


# -- whole requests ---------------------------------------------------------------------------------------------------


@pytest.mark.promise("F3")
def test_a_cluster_without_room_is_asked_again_when_it_says(cluster: Cluster) -> None:
    cluster.fill(1, 5)
    pipeline = cluster.create()
    asked: list[float] = []

    def busy_at_first(request: Request) -> Reply | None:
        if not request.is_bulk:
            return None
        asked.append(time.monotonic())
        busy = Reply(429, {"error": {"type": "circuit_breaking_exception"}}, {"Retry-After": "3"})
        return busy if len(asked) == 1 else None

    with cluster.proxy.following(busy_at_first):
        succeed(cluster.connection, cluster.settings, pipeline)
    first, second = asked
    assert second - first >= 3
    assert len(cluster.proxy.bulks) == 2
    assert len(cluster.ids()) == 5


@pytest.mark.promise("F3")
def test_a_pause_ends_the_wait_for_a_cluster_without_room(cluster: Cluster) -> None:
    cluster.fill(1, 5)
    pipeline = cluster.create()

    def busy(request: Request) -> Reply | None:
        if not request.is_bulk:
            return None
        pipelines.request_pause(cluster.connection, pipeline.id)
        return Reply(429, {"error": {"type": "circuit_breaking_exception"}}, {"Retry-After": "600"})

    with cluster.proxy.following(busy):
        executed = run(cluster.connection, cluster.settings, pipeline)
    assert executed.error is None
    assert pipelines.get(cluster.connection, pipeline.name).status is Status.PAUSED


@pytest.mark.promise("F4")
def test_a_cluster_that_is_down_postpones_the_run_and_nothing_is_doubled(cluster: Cluster) -> None:
    cluster.fill(1, 30)
    pipeline = cluster.create(**INCREMENTAL, batch_size=10)
    with cluster.proxy.down():
        executed = run(cluster.connection, cluster.settings, pipeline, waits=(0.01, 0.01), retry=True)
        assert executed.error is not None
        assert "unavailable" in str(executed.error)
    stored = pipelines.get(cluster.connection, pipeline.name)
    assert stored.lease_owner is None
    assert stored.status is Status.RUN_REQUESTED
    succeed(cluster.connection, cluster.settings, pipeline, resume=True)
    assert len(cluster.ids()) == 30


@pytest.mark.promise("F4")
def test_a_node_that_is_down_does_not_stop_a_run_that_knows_another_one(cluster: Cluster) -> None:
    cluster.fill(1, 30)
    urls = [cluster.proxy.url, *(f"http://127.0.0.1:{free_port()}" for _ in range(2))]
    pipeline = cluster.create(batch_size=10)
    succeed(cluster.connection, with_url(cluster, ",".join(urls)), pipeline)
    assert len(cluster.ids()) == 30


@pytest.mark.promise("F5")
@pytest.mark.parametrize("status", [502, 503, 504, None])
def test_a_request_that_failed_or_whose_reply_was_lost_is_repeated(cluster: Cluster, status: int | None) -> None:
    cluster.fill(1, 5)
    pipeline = cluster.create(**INCREMENTAL)

    def applied(request: Request) -> Reply:
        request.forward()
        if status is None:
            raise Lost
        return Reply(status, {"error": "bad gateway"})

    with cluster.proxy.following(cluster.proxy.once(applied)):
        succeed(cluster.connection, cluster.settings, pipeline, waits=(0.01, 0.01))
    assert len(cluster.ids()) == 5
    assert len(cluster.proxy.bulks) == 2


@pytest.mark.promise("F8")
@pytest.mark.parametrize("block", ["write", "read_only_allow_delete"])
def test_a_cluster_that_blocks_writes_is_a_passing_failure(cluster: Cluster, block: str) -> None:
    cluster.fill(1, 3)
    pipeline = cluster.create(**INCREMENTAL)
    succeed(cluster.connection, cluster.settings, pipeline)
    live = cluster.search.live(cluster.name)
    cluster.search.ask("PUT", f"{live}/_settings", {f"index.blocks.{block}": True})
    cluster.fill(4, 6)
    executed = run(cluster.connection, cluster.settings, pipeline, retry=True)
    assert executed.error is not None
    assert executed.error.code == "SINK_BLOCKED"
    assert "free disk space" in str(executed.error)
    cluster.search.ask("PUT", f"{live}/_settings", {f"index.blocks.{block}": None})
    succeed(cluster.connection, cluster.settings, pipeline, resume=True)
    assert len(cluster.ids()) == 6


def test_documents_are_not_rejects_because_their_index_is_closed(cluster: Cluster) -> None:
    cluster.fill(1, 3)
    fields: dict[str, Any] = {**INCREMENTAL, "options": {"horizon_margin": "0s", "on_reject": "quarantine"}}
    pipeline = cluster.create(**fields)
    succeed(cluster.connection, cluster.settings, pipeline)
    live = cluster.search.live(cluster.name)
    cluster.search.ask("POST", f"{live}/_close")
    cluster.fill(4, 6)
    executed = run(cluster.connection, cluster.settings, pipeline)
    assert executed.error is not None
    assert "closed" in str(executed.error)
    assert cluster.rejected(pipeline) == {}
    cluster.search.ask("POST", f"{live}/_open")
    succeed(cluster.connection, cluster.settings, pipeline)
    assert len(cluster.ids()) == 6


@pytest.mark.promise("F9")
@pytest.mark.parametrize("status", [401, 403])
def test_a_cluster_that_refuses_access_fails_the_run(cluster: Cluster, status: int) -> None:
    cluster.fill(1, 3)
    settings = with_url(cluster, cluster.proxy.url.replace("http://", "http://elastic:canary-password@"))
    pipeline = cluster.create()
    body = {"error": {"type": "security_exception", "reason": "unable to authenticate user [elastic]"}}
    with cluster.proxy.following(lambda request: Reply(status, body)):
        executed = run(cluster.connection, settings, pipeline, retry=True)
    assert executed.error is not None
    assert executed.error.code == "SINK_AUTH"
    assert "canary" not in str(executed.error)
    assert pipelines.get(cluster.connection, pipeline.name).status is Status.FAILED


def test_a_server_that_is_not_elasticsearch_is_refused(cluster: Cluster) -> None:
    pipeline = cluster.create()
    other = Reply(200, {"version": {"distribution": "opensearch"}}, {"X-Elastic-Product": "OpenSearch"})
    with cluster.proxy.following(lambda request: other):
        executed = run(cluster.connection, cluster.settings, pipeline)
    assert executed.error is not None
    assert executed.error.code == "SINK_PRODUCT"
    assert "OpenSearch is not supported" in str(executed.error)


def test_a_wrong_address_is_not_a_missing_index(cluster: Cluster) -> None:
    pipeline = cluster.create()
    page = Reply(404, b"<html>not found</html>", {"content-type": "text/html"})
    with cluster.proxy.following(lambda request: page):
        executed = run(cluster.connection, cluster.settings, pipeline)
    assert executed.error is not None
    assert executed.error.code == "SETTINGS"
    assert "VITRINE_ELASTICSEARCH_URL" in str(executed.error)


def test_a_shard_that_does_not_answer_is_not_taken_for_missing_documents(cluster: Cluster) -> None:
    """The shrink guard would compare with too few documents."""
    cluster.fill(1, 10)
    pipeline = cluster.create()
    succeed(cluster.connection, cluster.settings, pipeline)
    live = cluster.search.live(cluster.name)
    cluster.connection.execute("DELETE FROM content.numbers WHERE id > 2")

    def partial(request: Request) -> Reply | None:
        if not request.path.startswith(f"/{live}/_count"):
            return None
        return Reply(200, {"count": 3, "_shards": {"total": 3, "successful": 1, "skipped": 0, "failed": 2}})

    with cluster.proxy.following(partial):
        executed = run(cluster.connection, cluster.settings, pipeline, retry=True)
    assert isinstance(executed.error, TransientError)
    assert "2 of 3 shards of an index do not answer" in str(executed.error)
    assert cluster.search.live(cluster.name) == live
    assert len(cluster.ids()) == 10


def test_a_search_asks_for_every_shard(cluster: Cluster) -> None:
    cluster.fill(1, 3)
    pipeline = cluster.create()
    succeed(cluster.connection, cluster.settings, pipeline)
    assert reconcile.compare(pipeline.definition, cluster.settings).equal
    searches = [request for request in cluster.proxy.requests if request.path.startswith("/_search?")]
    assert searches
    assert all("allow_partial_search_results=false" in request.path for request in searches)


# -- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for 127.0.0.1 that signs itself, with its key."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("there is no openssl to make a certificate")
    key, path = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = f"{program} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=vitrine"
    arguments = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(path)]
    subprocess.run([*command.split(), *arguments], check=True, capture_output=True)
    path.write_text(path.read_text() + key.read_text())
    return path


@pytest.mark.promise("F9")
def test_a_certificate_is_checked_against_the_given_authority(
    cluster: Cluster, certificate: Path, tmp_path: Path
) -> None:
    cluster.fill(1, 3)
    pipeline = cluster.create()
    with SearchProxy.opened(cluster.search.url, certificate) as proxy:

        def secured(**fields: Any) -> Settings:
            section = {"elasticsearch": {"url": proxy.url, "takeover_grace": "0s", **fields}}
            return cluster.settings.model_copy(update={"connectors": section})

        untrusted = run(cluster.connection, secured(), pipeline)
        assert untrusted.error is not None
        assert untrusted.error.code == "SINK_AUTH"
        assert "self-signed certificate" in str(untrusted.error)
        assert "VITRINE_ELASTICSEARCH_CA_FILE" in str(untrusted.error)
        missing = run(cluster.connection, secured(ca_file=str(tmp_path / "none.pem")), pipeline)
        assert missing.error is not None
        assert missing.error.code == "SETTINGS"
        assert proxy.requests == []
        succeed(cluster.connection, secured(ca_file=str(certificate)), pipeline)
        assert proxy.requests
    assert len(cluster.ids()) == 3


def test_a_server_without_tls_is_a_wrong_setting_and_an_interrupted_handshake_is_not(cluster: Cluster) -> None:
    pipeline = cluster.create()
    url = cluster.proxy.url.replace("http://", "https://")
    plain = run(cluster.connection, with_url(cluster, url), pipeline)
    assert plain.error is not None
    assert plain.error.code == "SETTINGS"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_hang_up, args=[listener], daemon=True).start()
        interrupted = run(
            cluster.connection, with_url(cluster, f"https://127.0.0.1:{listener.getsockname()[1]}"), pipeline
        )
    assert isinstance(interrupted.error, TransientError)


def with_url(cluster: Cluster, url: str) -> Settings:
    return cluster.settings.model_copy(update={"connectors": {"elasticsearch": {"url": url}}})


def _hang_up(listener: socket.socket) -> None:
    """End every connection after the first bytes of the client."""
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            connection.recv(10)
            connection.close()
