"""The poller of the console: one read for all pages, a bound for any number of them, nothing without a page."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from itertools import pairwise
from typing import Any, cast

import psycopg
import pytest

from vitrine.console import poller, texts
from vitrine.console.poller import MAX_READS, Poller, State
from vitrine.console.viewer import Viewer
from vitrine.errors import TransientError
from vitrine.operations.context import Caller, Context, Role
from vitrine.settings import Settings

CONTEXT = Context(Settings(), Caller("console", "vitrine", Role.VIEWER), lambda: cast(Any, nullcontext()))


async def admit_all() -> None:
    return


def nothing(_: object) -> None:
    return


def fail(_: object) -> None:
    raise ValueError("a mistake in a page")


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "ROUND_SECONDS", 0.01)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def run(test: Callable[[Poller], Awaitable[None]]) -> None:
    async def main() -> None:
        await test(Poller(CONTEXT, admit_all))

    asyncio.run(main())


def test_pages_with_the_same_key_share_one_read() -> None:
    async def test(poller: Poller) -> None:
        seen: list[tuple[int, int]] = []
        for page in range(20):
            poller.watch("key", lambda _: 7, lambda value, page=page: seen.append((page, value)), every=1000)
            poller.listen(nothing)
        await until(lambda: len(seen) == 20)
        assert poller.reads == 1
        assert sorted(seen) == [(page, 7) for page in range(20)]

    run(test)


def test_a_round_reads_a_limited_number_of_topics_and_all_of_them_in_turn() -> None:
    async def test(poller: Poller) -> None:
        for number in range(3 * MAX_READS):
            poller.watch(number, lambda _, number=number: number, nothing, every=1000)
        seen: list[int] = []
        poller.listen(lambda _: seen.append(poller.reads))
        await until(lambda: len(seen) >= 4)
        assert seen[:4] == [MAX_READS, 2 * MAX_READS, 3 * MAX_READS, 3 * MAX_READS]

    run(test)


def test_nothing_is_read_without_an_open_page() -> None:
    async def test(poller: Poller) -> None:
        rounds: list[State] = []
        number = poller.listen(rounds.append)
        watched = poller.watch("key", lambda _: len(rounds), nothing, every=0)
        await until(lambda: poller.reads >= 2)
        poller.unwatch(watched)
        poller.close(number)
        before, read = len(rounds), poller.reads
        await asyncio.sleep(0.1)
        assert (len(rounds), poller.reads) == (before, read)
        poller.listen(rounds.append)
        await until(lambda: len(rounds) > before)

    run(test)


def test_only_what_has_changed_is_shown() -> None:
    async def test(poller: Poller) -> None:
        values = iter([1, 1, 1, 2])
        shown: list[int] = []
        poller.watch("key", lambda _: next(values, 2), shown.append, every=0)
        poller.listen(nothing)
        await until(lambda: poller.reads >= 6)
        assert shown == [1, 2]

    run(test)


def test_a_page_is_shown_what_it_watches_once_whoever_has_read_it() -> None:
    async def test(poller: Poller) -> None:
        unused = cast(Any, None)
        for _ in range(2):
            viewer = Viewer(unused, unused, settings=unused, pool=unused, sessions=unused, poller=poller)
            shown: list[int] = []
            assert await viewer.watch("key", lambda _: 7, shown.append, every=1000) == 7
            assert shown == [7]
        assert poller.reads == 1

    run(test)


def test_what_a_page_expects_is_read_while_it_is_built_and_shown_when_it_watches() -> None:
    async def test(poller: Poller) -> None:
        unused = cast(Any, None)
        begun, may_end = threading.Event(), threading.Event()

        def fetch(_: Context) -> int:
            begun.set()
            assert may_end.wait(20)
            return 7

        shown: list[list[int]] = [[], []]
        first, second = (
            Viewer(unused, unused, settings=unused, pool=unused, sessions=unused, poller=poller) for _ in range(2)
        )
        first.expect("key", fetch, every=1000)
        await until(begun.is_set)
        watching = [
            asyncio.create_task(viewer.watch("key", fetch, page.append, every=1000))
            for viewer, page in zip((first, second), shown, strict=True)
        ]
        await asyncio.sleep(0)
        may_end.set()
        assert await asyncio.gather(*watching) == [7, 7]
        assert (shown, poller.reads) == ([[7], [7]], 1)
        first.close()
        second.close()
        assert await poller.read("key") is None

    run(test)


def test_a_page_that_expects_what_cannot_be_read_says_so() -> None:
    async def test(poller: Poller) -> None:
        unused = cast(Any, None)

        def fetch(_: Context) -> int:
            raise TransientError("the store is away")

        viewer = Viewer(unused, unused, settings=unused, pool=unused, sessions=unused, poller=poller)
        viewer.expect("key", fetch, every=1000)
        assert await viewer.watch("key", fetch, nothing, every=1000) is None
        assert viewer.problem == "the store is away"

    run(test)


def test_pages_are_shown_one_at_a_time_and_other_tasks_run_between_them() -> None:
    async def test(poller: Poller) -> None:
        order: list[str] = []

        async def others() -> None:
            while True:
                order.append("other")
                await asyncio.sleep(0)

        for page in ("first", "second", "third"):
            poller.watch("key", lambda _: 1, lambda _, page=page: order.append(page), every=1000)
        running = asyncio.create_task(others())
        poller.listen(nothing)
        await until(lambda: "third" in order)
        running.cancel()
        shown = [number for number, one in enumerate(order) if one != "other"]
        assert [order[number] for number in shown] == ["first", "second", "third"]
        assert all(one + 1 < other for one, other in pairwise(shown))

    run(test)


def test_a_page_that_was_closed_while_others_were_shown_is_left_out() -> None:
    async def test(poller: Poller) -> None:
        shown: list[str] = []
        numbers: list[int] = []

        def close_the_other(_: int) -> None:
            shown.append("first")
            poller.unwatch(numbers[1])

        numbers.append(poller.watch("key", lambda _: 1, close_the_other, every=1000))
        numbers.append(poller.watch("key", lambda _: 1, lambda _: shown.append("second"), every=1000))
        states: list[State] = []
        poller.listen(states.append)
        await until(lambda: bool(states))
        assert shown == ["first"]

    run(test)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TransientError("store: connection refused"), "store: connection refused"),
        (psycopg.OperationalError("secret"), "the database does not respond"),
    ],
)
def test_a_failure_is_reported_until_a_round_succeeds(error: Exception, text: str) -> None:
    async def test(poller: Poller) -> None:
        failing = [True]

        def fetch(_: Context) -> int:
            if failing:
                raise error
            return 1

        states: list[State] = []
        poller.watch("key", fetch, nothing, every=0)
        poller.listen(states.append)
        await until(lambda: bool(states))
        assert states[-1].error == text
        assert states[-1].read_at is None
        failing.clear()
        await until(lambda: states[-1].error is None)
        assert states[-1].read_at is not None

    run(test)


def test_a_page_with_a_mistake_does_not_stop_the_others() -> None:
    async def test(poller: Poller) -> None:
        shown: list[int] = []
        states: list[State] = []
        poller.watch("broken", lambda _: 1 // 0, nothing, every=0)
        poller.watch("good", lambda _: 1, fail, every=0)
        poller.watch("good", lambda _: 1, shown.append, every=0)
        poller.listen(states.append)
        await until(lambda: bool(shown))
        await until(lambda: bool(states))
        assert poller.problem_of(["good", "broken"]) == texts.UNEXPECTED
        assert (poller.problem_of(["good"]), states[-1].error) == (None, None)

    run(test)


@pytest.mark.parametrize("error", [psycopg.OperationalError("no route"), psycopg.errors.UndefinedTable("renamed")])
def test_a_failed_read_is_reported_until_it_succeeds_also_in_rounds_that_do_not_repeat_it(error: Exception) -> None:
    async def test(poller: Poller) -> None:
        failing = [True]

        def fetch(_: Context) -> int:
            if failing:
                raise error
            return 1

        rounds: list[State] = []
        poller.watch("key", fetch, nothing, every=1000)
        poller.listen(rounds.append)
        await until(lambda: len(rounds) >= 3)
        assert poller.reads == 1
        assert poller.problem_of(["key"]) is not None
        failing.clear()
        poller.hurry()
        await until(lambda: poller.problem_of(["key"]) is None)

    run(test)


def test_a_page_does_not_show_what_it_no_longer_watches() -> None:
    async def test(poller: Poller) -> None:
        unused = cast(Any, None)
        begun, may_end = threading.Event(), threading.Event()

        def slow(_: Context) -> str:
            begun.set()
            assert may_end.wait(20)
            return "slow"

        shown: list[str] = []
        viewer = Viewer(unused, unused, settings=unused, pool=unused, sessions=unused, poller=poller)
        first = asyncio.create_task(viewer.watch("slow", slow, shown.append, every=1000))
        await until(begun.is_set)
        viewer.unwatch("slow")
        await viewer.watch("quick", lambda _: "quick", shown.append, every=1000)
        may_end.set()
        await first
        assert shown == ["quick"]

    run(test)
