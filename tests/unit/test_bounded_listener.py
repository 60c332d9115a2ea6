"""A listener with a limited number of connections."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from vitrine.listening import BoundedListener

LIMIT = 3


@pytest.fixture
def listener() -> Iterator[BoundedListener]:
    with BoundedListener(socket.AF_INET, LIMIT) as one:
        one.bind(("127.0.0.1", 0))
        one.listen(16)
        yield one


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def connect(listener: BoundedListener, stack: ExitStack) -> tuple[socket.socket, socket.socket]:
    """Both ends of a new connection: the client's, and the accepted one."""
    client = stack.enter_context(socket.create_connection(listener.getsockname(), timeout=10))
    accepted, _ = listener.accept()
    return client, stack.enter_context(accepted)


@pytest.mark.promise("K8")
def test_above_the_limit_the_oldest_waiting_connection_is_ended(listener: BoundedListener, stack: ExitStack) -> None:
    pairs = [connect(listener, stack) for _ in range(LIMIT + 2)]
    assert listener.connections == LIMIT
    for number, (client, accepted) in enumerate(pairs):
        if number < 2:
            assert (client.recv(1), accepted.recv(1)) == (b"", b"")
        else:
            accepted.sendall(b"x")
            assert client.recv(1) == b"x"


@pytest.mark.promise("K8")
def test_a_connection_at_work_is_kept_and_a_new_one_refused_if_all_are(
    listener: BoundedListener, stack: ExitStack
) -> None:
    pairs = [connect(listener, stack) for _ in range(LIMIT)]
    for _, accepted in pairs:
        listener.set_at_work(accepted.fileno(), True)
    assert connect(listener, stack)[0].recv(1) == b""
    listener.set_at_work(pairs[1][1].fileno(), False)
    connect(listener, stack)
    assert pairs[1][0].recv(1) == b""
    for at_work in (0, 2):
        pairs[at_work][1].sendall(b"x")
        assert pairs[at_work][0].recv(1) == b"x"


def test_a_closed_connection_makes_room(listener: BoundedListener, stack: ExitStack) -> None:
    for _ in range(3 * LIMIT):
        client, accepted = connect(listener, stack)
        accepted.sendall(b"x")
        assert client.recv(1) == b"x"
        accepted.close()
    assert listener.connections == 0


def test_the_parts_of_a_response_are_sent_at_once(listener: BoundedListener, stack: ExitStack) -> None:
    _, accepted = connect(listener, stack)
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
