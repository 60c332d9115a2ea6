"""Runs of a pipeline under test: what a scenario needs of them, whatever keeps their state."""

from abc import ABC, abstractmethod
from typing import Any, Protocol, TypeVar

from vitrine.core.protocols import Outcome, Stop
from vitrine.core.rows import Key
from vitrine.errors import TransientError, VitrineError
from vitrine_testing.cases import Texts
from vitrine_testing.control import ScriptedControl
from vitrine_testing.lists import ListTable
from vitrine_testing.points import Points

ATTEMPTS = 5
"""More than any scenario needs: a run that does not end is a failure, not a loop."""


class Crash(BaseException):
    """The process ends here: nothing that catches errors may catch it."""


class Held(ABC):
    """One claim of a pipeline, and the attempts of its run."""

    @abstractmethod
    def work(self, points: Points, control: ScriptedControl) -> bool:
        """One attempt, from what is stored; whether one more pass must follow. Raises Stop if it is interrupted."""

    def attempt(self, points: Points | None = None, control: ScriptedControl | None = None) -> Outcome | None:
        """How one attempt ended; None: one more pass must follow."""
        try:
            again = self.work(points or Points(), control or ScriptedControl())
        except Stop as stop:
            return stop.outcome
        return None if again else Outcome.FINISHED

    @abstractmethod
    def leave(self, ended: Outcome | VitrineError) -> None:
        """End the run and the claim; nothing happens where the lease was lost."""

    @abstractmethod
    def drop(self) -> None:
        """Release what the claim uses, as the end of its process does."""

    def complete(self, points: Points | None = None, control: ScriptedControl | None = None) -> Outcome:
        """Attempts until one needs no repetition; an error that forbids another one is raised."""
        for _ in range(ATTEMPTS):
            try:
                if (outcome := self.attempt(points, control)) is not None:
                    return outcome
            except TransientError:
                self.drop()
        raise AssertionError(f"{ATTEMPTS} attempts have failed")

    def ended(self, points: Points | None = None, control: ScriptedControl | None = None) -> Outcome | VitrineError:
        """The same; an error is returned."""
        try:
            return self.complete(points, control)
        except VitrineError as exc:
            return exc


class Tested(ABC):
    """A pipeline from a list to a target."""

    table: ListTable
    incremental: bool
    key: tuple[str, ...]
    asks_full: bool = False  # the next requests are for a full run

    @abstractmethod
    def rows(self) -> dict[Key, Texts]:
        """What users of the target see."""

    @abstractmethod
    def claim(self, **options: bool) -> Held:
        """Request a run and claim it."""

    @abstractmethod
    def take_over(self) -> Held | None:
        """The next claim, once the lease of the latest has expired; None while the store does not allow it."""

    def change_query(self) -> None:
        """From now on the same list is another query."""
        self.table.version += 1

    def is_equal(self) -> bool:
        return self.rows() == self.table.by_key(self.key)

    def run(
        self,
        points: Points | None = None,
        control: ScriptedControl | None = None,
        held: Held | None = None,
        **options: bool,
    ) -> Outcome:
        """One run from claim to end, of a new claim or of this one; an error that ends it is raised."""
        held = held or self.claim(**options)
        try:
            ended = held.ended(points, control)
            held.leave(ended)
        finally:
            held.drop()
        if isinstance(ended, VitrineError):
            raise ended
        return ended

    def crash(self, point: str, held: Held | None = None) -> None:
        """A run that crashes at the point, of a new claim or of this one; the claim stays as it is."""

        def end_process() -> None:
            raise Crash

        held = held or self.claim()
        points = Points(point, end_process)
        try:
            held.attempt(points)
        except Crash:
            return
        finally:
            held.drop()
        raise AssertionError(f"the run did not reach '{point}', only {', '.join(points.reached)}")

    def finish_elsewhere(self) -> None:
        """Another runner takes the pipeline over and completes the run."""
        successor = self.take_over()
        assert successor is not None, "the pipeline was not taken over"
        successor.leave(successor.complete())


PipelineOf = TypeVar("PipelineOf", bound=Tested, covariant=True)


class Bench(Protocol[PipelineOf]):
    """Makes pipelines."""

    def pipeline(self, table: ListTable, **fields: Any) -> PipelineOf:
        """A pipeline from the list to a new target; by default a full load by `id`."""
        ...
