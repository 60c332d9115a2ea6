"""The databases of the benchmark: `src` and `dst` for work between databases, `mart` for work inside one."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from bench import catalogue, ratings, server
from bench.database import Database, opened
from bench.server import Server
from bench.tree import Definition, Installation, this_tree

RATINGS, FILMS = 2_000_000, 200_000


@dataclass(frozen=True)
class Setup:
    """What a workload needs: data of one size, in databases that every benchmark creates anew."""

    server: Server
    src: Database
    dst: Database
    mart: Database
    scale: float
    rounds: int
    ratings: int
    films: int

    @property
    def between(self) -> Installation:
        """Vitrine with store and marts in `dst` and the data in `src`."""
        return Installation(this_tree(), self.dst.url, self.src.url)

    @property
    def inside(self) -> Installation:
        """Vitrine with everything in `mart`."""
        return Installation(this_tree(), self.mart.url, self.mart.url)

    def checkpoint(self) -> None:
        self.server.checkpoint()

    def run(self, vitrine: Installation, name: str) -> float:
        """The seconds of one run, after a CHECKPOINT."""
        return vitrine.timed_run(name, before=self.checkpoint).seconds

    def reset(self, vitrine: Installation, definition: Definition) -> None:
        """Drop the target and the state of a pipeline: its next run is a first load."""
        database = self.dst if vitrine.store_url == self.dst.url else self.mart
        database.execute(f"DROP TABLE IF EXISTS {definition['target_table']}")
        vitrine.apply_timed(definition, reset=True)


@contextmanager
def prepared(scale: float, rounds: int, *, port: int | None = None) -> Generator[Setup]:
    """The server is stopped at the end; the generated data stays in its folder for the next benchmark of that size."""
    counts = {"ratings": round(RATINGS * scale), "films": round(FILMS * scale)}
    with server.running("tcp" if port else "socket", port=port) as running, ExitStack() as stack:
        template = _template(running, **counts)
        for name, origin in {"src": template, "dst": "template1", "mart": template}.items():
            running.recreate(name, origin)

        def database(name: str) -> Database:
            return stack.enter_context(opened(running.url(name)))

        setup = Setup(running, database("src"), database("dst"), database("mart"), scale, rounds, **counts)
        for installation, target in ((setup.between, setup.dst), (setup.inside, setup.mart)):
            installation.migrate()
            target.execute("CREATE SCHEMA hand")
        yield setup


def _template(running: Server, *, ratings: int, films: int) -> str:
    """The name of a database with the generated data; an earlier benchmark may have left it."""
    name = f"bench_{ratings}_{films}"
    if not running.has(name):
        unfinished = f"{name}_unfinished"
        running.recreate(unfinished)
        with opened(running.url(unfinished)) as database:
            _fill(database, ratings, films)
        running.rename(unfinished, name)
    return name


def _fill(database: Database, ratings_count: int, films_count: int) -> None:
    ratings.create(database, ratings_count)
    ratings.create_warm_up(database)
    catalogue.create(database, films_count)
