"""Who may call which route: the only table. A request that it does not list is answered with 404 or 405."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from starlette.routing import compile_path

from vitrine.api.parameters import PREFIX
from vitrine.operations import access, checks, control, definitions, history, many, plans
from vitrine.operations.context import Role, role_of

Key = tuple[str, str]
"""Method and path, as the route has it, without the prefix."""

OPERATIONS: Mapping[Key, Callable[..., Any]] = {
    ("GET", "/pipelines"): definitions.list_page,
    ("POST", "/pipelines"): definitions.create,
    ("GET", "/pipelines/{id}"): definitions.get,
    ("PATCH", "/pipelines/{id}"): definitions.change,
    ("DELETE", "/pipelines/{id}"): definitions.delete,
    ("PATCH", "/pipelines/{id}/update-config"): definitions.change,
    ("POST", "/pipelines/{id}/update-config"): definitions.change,
    ("GET", "/pipelines/{id}/tasks"): definitions.get,
    ("PUT", "/pipelines/{id}/tasks"): definitions.replace_tasks,
    ("POST", "/pipelines/{id}/enable"): definitions.set_enabled,
    ("POST", "/pipelines/{id}/disable"): definitions.set_enabled,
    ("POST", "/pipelines/{id}/detach-file"): definitions.detach_file,
    ("POST", "/pipelines/{id}/run"): control.run,
    ("POST", "/runs"): many.run_many,
    ("POST", "/pipelines/{id}/resume"): control.resume,
    ("POST", "/pipelines/{id}/rollback"): control.roll_back,
    ("POST", "/pipelines/{id}/pause"): control.pause,
    ("POST", "/pipelines/{id}/reload-config"): control.reload,
    ("GET", "/pipelines/{id}/status"): history.status,
    ("GET", "/pipelines/{id}/state"): history.state,
    ("POST", "/pipelines/{id}/state"): history.change_state,
    ("GET", "/pipelines/{id}/runs"): history.list_runs,
    ("GET", "/pipelines/{id}/runs/statistics"): history.statistics,
    ("GET", "/pipelines/{id}/runs/{run_id}"): history.run,
    ("GET", "/pipelines/{id}/runs/{run_id}/log"): history.run_log,
    ("POST", "/validate"): checks.validate,
    ("GET", "/pipelines/{id}/validate"): checks.validate,
    ("POST", "/pipelines/{id}/validate"): checks.validate,
    ("POST", "/preview"): checks.preview,
    ("GET", "/pipelines/{id}/preview"): checks.preview,
    ("POST", "/plan"): plans.plan_change,
    ("POST", "/pipelines/{id}/plan"): plans.plan_change,
    ("GET", "/pipelines/{id}/reconcile"): checks.compare,
    ("POST", "/pipelines/{id}/reconcile"): control.request_reconcile,
    ("GET", "/pipelines/{id}/reconciliations"): history.list_reconciliations,
    ("GET", "/pipelines/{id}/rejects"): checks.rejects,
    ("POST", "/pipelines/{id}/rejects/replay"): control.replay_rejects,
    ("GET", "/pipelines/{id}/trace"): checks.trace,
    ("POST", "/pipelines/{id}/trace/resend"): control.resend,
    ("POST", "/apply"): plans.apply_documents,
    ("GET", "/sources/{name}/tables"): checks.list_tables,
    ("GET", "/transforms"): checks.list_transforms,
    ("GET", "/requests/{request_id}"): history.request,
    ("GET", "/whoami"): access.who_am_i,
    ("GET", "/tokens"): access.list_tokens,
    ("POST", "/tokens"): access.create_token,
    ("DELETE", "/tokens/{name}"): access.revoke_token,
    ("GET", "/audit"): access.list_audit_log,
}
"""Routes under both prefixes, and the service function that each calls and that names the role."""

STRICTER: Mapping[Key, Role] = {
    ("POST", "/validate"): Role.ADMIN,
    ("POST", "/preview"): Role.ADMIN,
    ("POST", "/plan"): Role.ADMIN,
}
"""Routes that need more than their function does: these execute a query that the client sends."""

HEALTH: Mapping[Key, Role | None] = {("GET", "/health"): Role.VIEWER, ("GET", "/health/live"): None}
"""Routes under both prefixes about the process itself. None: no token is needed."""

PAGES: Mapping[Key, Role] = {
    ("GET", "/"): Role.VIEWER,
    ("GET", "/docs"): Role.VIEWER,
    ("GET", "/docs/{name}"): Role.VIEWER,
    ("GET", "/openapi.json"): Role.VIEWER,
    ("HEAD", "/openapi.json"): Role.VIEWER,
}
"""Pages for browsers, which can send a token as a password only."""

# guarantee: H14
METRICS: Mapping[Key, Role] = {("GET", "/metrics"): Role.VIEWER}


@dataclass(frozen=True)
class Permission:
    """Who may use one route."""

    method: str
    path: str
    role: Role | None  # None: no token is needed
    operation: str = ""  # the service function; empty: the route calls none
    in_browser: bool = False  # a token is also accepted as the password of HTTP Basic

    @property
    def needs_store(self) -> bool:
        """The others also answer while the store is unavailable, and then show nothing of it."""
        return bool(self.operation)

    @cached_property
    def pattern(self) -> Any:
        return compile_path(self.path)[0]


def all_permissions() -> Iterator[Permission]:
    for prefix in (PREFIX, ""):
        for (method, path), operation in OPERATIONS.items():
            name = f"{operation.__module__.rpartition('.')[2]}.{operation.__name__}"
            yield Permission(method, prefix + path, STRICTER.get((method, path), role_of(operation)), name)
        for (method, path), role in HEALTH.items():
            yield Permission(method, prefix + path, role)
    for (method, path), role in PAGES.items():
        yield Permission(method, path, role, in_browser=True)
    for (method, path), role in METRICS.items():
        yield Permission(method, path, role)


PERMISSIONS = tuple(all_permissions())


@dataclass(frozen=True)
class Found:
    """What the table has for a path: one entry for the method, and the methods of the path."""

    permission: Permission | None
    methods: frozenset[str]


def find(method: str, path: str) -> Found:
    """If several entries match, the strictest decides."""
    matching = [one for one in PERMISSIONS if one.pattern.fullmatch(path)]
    for_method = [one for one in matching if one.method == method]
    strictest = max(for_method, key=lambda one: list(Role).index(one.role) if one.role else -1, default=None)
    return Found(strictest, frozenset(one.method for one in matching))
