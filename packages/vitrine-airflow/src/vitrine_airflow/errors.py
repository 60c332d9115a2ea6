"""Errors of the API, grouped by what a caller can do about them."""


class ApiError(Exception):
    """The API did not do what it was asked for; the text is one sentence, `code` is stable."""

    def __init__(self, sentence: str, *, code: str) -> None:
        super().__init__(sentence)
        self.code = code


class Refused(ApiError):
    """The same call would be refused again: the connection, the pipeline or an option must be corrected."""


class Conflict(ApiError):
    """The status of the pipeline does not allow it now."""


class Unavailable(ApiError):
    """No answer, or one that asks to come back later."""

    def __init__(self, sentence: str, *, code: str, retry_after: float = 0.0) -> None:
        super().__init__(sentence, code=code)
        self.retry_after = retry_after


class Failed(Exception):
    """The request has ended, and not well; the text is the sentence for the task."""
