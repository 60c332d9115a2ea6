"""The faults: killed and frozen runners, cut connections, lost commits and replies, server crashes."""

import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.helpers.processes import Started, runner
from tests.helpers.proxy import Proxy
from vitrine.embedded import EmbeddedPostgres
from vitrine.postgres import connect

BATCH = b"UPDATE etl.etl_state"


class Runners:
    """Runner processes; a dead one is replaced."""

    def __init__(self, url: str, folder: Path, number: int, **variables: str) -> None:
        self._url = url
        self._folder = folder
        self._variables = variables
        self._stack = ExitStack()
        self.alive = [self._start() for _ in range(number)]

    def _start(self) -> Started:
        return self._stack.enter_context(runner(self._url, self._folder, concurrency=3, **self._variables))

    def kill(self, one: Started) -> None:
        one.stop(signal.SIGKILL)
        self.replace_the_dead()

    def replace_the_dead(self) -> int:
        """Returns their number; a runner can also exit by itself."""
        dead = [one for one in self.alive if one.process.poll() is not None]
        self.alive = [one for one in self.alive if one not in dead] + [self._start() for _ in dead]
        return len(dead)

    def close(self) -> None:
        self._stack.close()


class Faults:
    """Injects faults one by one, in an order that the seed determines."""

    def __init__(self, seed: int, server: EmbeddedPostgres, proxy: Proxy, runners: Runners) -> None:
        self._random = random.Random(seed)
        self._server = server
        self._proxy = proxy
        self._runners = runners
        self._timers: list[threading.Timer] = []
        self.done: Counter[str] = Counter()
        self._kinds: dict[str, tuple[int, Callable[[], object]]] = {
            "kill": (6, lambda: runners.kill(self._one())),
            "freeze": (6, self._freeze),
            "cut": (5, proxy.cut),
            "end a session": (5, self._terminate),
            "lose a commit's reply": (5, lambda: proxy.drop_commit_reply(BATCH, skip=self._random.randint(0, 5))),
            "lose a commit": (3, lambda: proxy.drop_commit_request(BATCH, skip=self._random.randint(0, 5))),
            "stall": (2, self._stall),
            "crash the server": (2, lambda: server.restart("immediate")),
        }

    def inject(self, *, until: threading.Event) -> None:
        """Inject faults until the event is set; afterwards all runners work again."""
        names, weights = list(self._kinds), [weight for weight, _ in self._kinds.values()]
        while not until.wait(self._random.uniform(0.1, 1.2)):
            (name,) = self._random.choices(names, weights)
            self._kinds[name][1]()
            self.done[name] += 1
            self._runners.replace_the_dead()
        for timer in self._timers:
            timer.join()
        self._runners.replace_the_dead()

    def _one(self) -> Started:
        return self._random.choice(self._runners.alive)

    def _later(self, seconds: float, action: Callable[[], object]) -> None:
        self._timers.append(threading.Timer(seconds, action))
        self._timers[-1].start()

    def _freeze(self) -> None:
        """For a shorter or a longer time than the lease lasts."""
        one = self._one()
        one.process.send_signal(signal.SIGSTOP)
        self._later(self._random.choice((0.5, 1.5, 3.0, 5.0)), lambda: one.process.send_signal(signal.SIGCONT))

    def _stall(self) -> None:
        self._proxy.stall()
        self._later(self._random.choice((0.5, 3.0)), self._proxy.resume)

    def _terminate(self) -> None:
        pick = "SELECT pid FROM pg_stat_activity WHERE application_name ~ '^vitrine:[0-9a-f]+:[0-9]' ORDER BY pid"
        with connect(self._server.url(), name="chaos") as connection:
            if sessions := connection.execute(pick).fetchall():
                connection.execute("SELECT pg_terminate_backend(%s)", [self._random.choice(sessions)["pid"]])
