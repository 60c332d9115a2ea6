"""The command that lists registered Python tasks: transforms."""

from vitrine.cli import building, output


def transforms() -> None:
    """List the installed Python tasks with their options: transforms of rows and of frames, and readers."""
    from vitrine import registry

    registry.load(building.load_settings().transform_modules)
    rows = [
        (task.name, task.kind, "\n".join(registry.describe_options(task)), task.summary, task.origin)
        for task in (*registry.transforms.tasks(), *registry.readers.tasks())
    ]
    output.show_table(("name", "kind", "options", "what it does", "from"), rows, wrap=("what it does",))
