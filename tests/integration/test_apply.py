"""Documents that are applied at the same time by several clients."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from vitrine.definition.yaml import Document
from vitrine.operations import changes
from vitrine.postgres import Connection, connect
from vitrine.settings import Settings
from vitrine.store import pipelines

MANY, ROUNDS = 30, 3


def documents(author: str) -> list[Document]:
    return [
        Document(
            f"p{number:02}.yaml",
            {
                "name": f"p{number:02}",
                "description": author,
                "source_query": "SELECT id, name FROM content.genre",
                "target_table": f"analytics.p{number:02}",
                "key_columns": ["id"],
            },
        )
        for number in range(MANY)
    ]


def test_two_sets_that_change_the_same_pipelines_in_another_order_are_applied_one_after_the_other(
    connection: Connection, settings: Settings
) -> None:
    together = Barrier(2)

    def apply(given: Sequence[Document]) -> int:
        with connect(settings.store_url, name="tests") as own:
            together.wait(20)
            return len(changes.apply_all(own, settings, given, None))

    changes.apply_all(connection, settings, documents("nobody"), None)
    with ThreadPoolExecutor(2) as threads:
        for number in range(ROUNDS):
            sets = [documents(f"first {number}"), documents(f"second {number}")[::-1]]
            assert list(threads.map(apply, sets)) == [MANY, MANY]
            # every pipeline is as the set that came last has it
            stored = {pipelines.get(connection, one.fields["name"]).definition.description for one in sets[0]}
            assert len(stored) == 1
            assert str(number) in stored.pop()
