"""The definition of a pipeline, with its task plan as a diagram."""

from collections.abc import Sequence
from typing import Any, cast

from vitrine.console import parts, texts
from vitrine.console.components import Sql
from vitrine.console.pages.pipeline_parts import text_fact
from vitrine.pipeline_files.writing import dump
from vitrine.service.bodies.pipelines import PipelineBody


def build_definition(pipeline: PipelineBody) -> None:
    """The task plan as a row of boxes, the queries, and every field that has not its default."""
    from vitrine import revisions  # slow to import

    definition = pipeline.definition()
    queries = [step.body for step in definition.tasks if step.task_type == "SQL" and step.body]
    if definition.source_query and not definition.tasks:
        queries.append(definition.source_query)
    with parts.box("v-card", tag="section"):
        with parts.box("v-card-head"):
            parts.text(texts.DEFINITION, tag="h3")
            parts.text(texts.VERSION.format(version=pipeline.config_version), "v-muted")
            if pipeline.managed_by is not None:
                parts.text(texts.MANAGED.format(file=pipeline.managed_by.file), "v-muted")
                parts.when(pipeline.managed_by.applied_at, age=True).classes("v-muted")
                if pipeline.managed_by.differs:
                    parts.badge(texts.CHANGED_SINCE, "late").props["title"] = texts.CHANGED_SINCE_HELP
        with parts.box("v-pad v-stack"):
            _plan(plan_boxes(pipeline))
            for query in queries:
                with parts.box("v-code-box"):
                    Sql(query)
                    parts.copy_button(query)
            fields = {
                name: value
                for name, value in revisions.flat(definition).items()
                if name not in ("source_query", "tasks", "description")
            }
            with parts.box("v-facts v-narrow", tag="dl"):
                for name, value in fields.items():
                    text_fact(name).classes("v-lines").set_text(shown_value(value))
            parts.text(texts.ONLY_DIFFERENT, "v-sub", tag="p")


def shown_value(value: object) -> str:
    """A field as a person would write it: values in one line, mappings as YAML."""
    if isinstance(value, dict):
        return dump(cast(dict[str, Any], value)).rstrip()
    if not isinstance(value, list):
        return str(value)
    items = cast(list[Any], value)
    return dump(items).rstrip() if any(isinstance(one, dict) for one in items) else ", ".join(map(str, items))


def plan_boxes(pipeline: PipelineBody) -> list[tuple[str, str]]:
    """What the rows pass, each with its kind: source, steps, target."""
    boxes = [(texts.SOURCE, f"{pipeline.source} ({pipeline.source_type})")]
    for step in pipeline.tasks:
        if step.task_type == "PYTHON":
            boxes.append((texts.TRANSFORM, step.body or "–"))
        else:
            boxes.append(("SQL", step.source_table or texts.QUERY))
    if not pipeline.tasks:
        if pipeline.source_query:
            boxes.append(("SQL", texts.QUERY))
        if pipeline.python_task:
            boxes.append((texts.TRANSFORM, pipeline.python_task))
    return [*boxes, (texts.TARGET, pipeline.target_table)]


def _plan(boxes: Sequence[tuple[str, str]]) -> None:
    with parts.box("v-plan", tag="ol") as plan:
        plan.props["aria-label"] = texts.TASK_PLAN
        for kind, name in boxes:
            with parts.box("v-step", tag="li"):
                parts.text(kind, "v-label")
                parts.text(name, "v-mono")
