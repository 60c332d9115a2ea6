"""What pipelines can be made of: tables of a source, and registered Python tasks."""

from vitrine import plugins, registry
from vitrine.errors import ConfigError, NotFound
from vitrine.service.bodies.sources import TableBody, TablePage, TransformBody, TransformList
from vitrine.service.context import Context
from vitrine.service.permissions import allowed
from vitrine.service.roles import Role

SOURCE_TYPE = "postgres"
"""The connector of the sources in the settings."""


@allowed(Role.OPERATOR)
def tables(
    context: Context,
    source: str,
    *,
    schema: str | None = None,
    table: str | None = None,
    after: str = "",
    limit: int = 100,
) -> TablePage:
    """Readable tables of a source, by its reader's account; `after` is the full name of a table."""
    known = sorted({"default", *(name.lower() for name in context.settings.sources)})
    if source not in known:
        raise NotFound(f"there is no source of that name; configured: {', '.join(known)}", code="UNKNOWN_SOURCE")
    connector = plugins.source(SOURCE_TYPE)
    if connector.source is None or connector.source.tables is None:
        raise ConfigError(f"connector '{connector.name}' cannot list what it reads", code="NO_TABLES")
    list_tables = plugins.load_class(connector, connector.source.tables)
    before, _, name = after.partition(".")
    found = list_tables(
        context.settings.source_url(source),
        context.settings.section(connector.name, connector.settings),
        schema=schema,
        table=table,
        after=(before, name),
        limit=limit + 1,
    )
    items = [TableBody.of(one) for one in found[:limit]]
    return TablePage(source=source, items=items, next=items[-1].full_name if len(found) > limit else None)


@allowed(Role.VIEWER)
def transforms(context: Context) -> TransformList:
    """Transforms, then readers, each in the order of names."""
    registry.load(context.settings.transform_modules)
    tasks = (*registry.transforms.tasks(), *registry.readers.tasks())
    return TransformList(items=[TransformBody.of(task) for task in tasks])
