"""The role that each service function requires: it is checked by the function itself, whatever calls it."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from vitrine.service.context import Context
from vitrine.service.roles import Role

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")
Operation = Callable[Concatenate[Context, Arguments], Answer]

_roles: dict[Callable[..., Any], Role] = {}


def allowed(role: Role) -> Callable[[Operation[Arguments, Answer]], Operation[Arguments, Answer]]:
    """A service function that callers of this role, and of the roles that include it, may call."""

    def decorate(function: Operation[Arguments, Answer]) -> Operation[Arguments, Answer]:
        @wraps(function)
        def checked(context: Context, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
            # guarantee: H2
            context.caller.require(role)
            return function(context, *args, **kwargs)

        _roles[checked] = role
        return checked

    return decorate


def role_of(operation: Callable[..., Any]) -> Role:
    """The role that a service function requires; KeyError if it checks none."""
    return _roles[operation]
