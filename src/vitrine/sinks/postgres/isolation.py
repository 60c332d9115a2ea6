"""Finding the rows that cannot be written, by halving the range they are in."""

from collections.abc import Callable, Iterator


def isolate(first: int, last: int, attempt: Callable[[int, int], Exception | None]) -> Iterator[tuple[int, Exception]]:
    """Numbers of the rows that fail on their own, in order, with their errors; every other row is done afterwards.

    `attempt` does the rows from the first to the last number given, or leaves nothing of them behind and returns why.
    """
    waiting = [(first, last)]
    while waiting:
        low, high = waiting.pop()
        if low > high or (error := attempt(low, high)) is None:
            continue
        if low == high:
            yield low, error
        else:
            middle = (low + high) // 2
            waiting += [(middle + 1, high), (low, middle)]
