"""The JSON Schema of a pipeline's YAML file, for editors."""

import json
from typing import Any

from vitrine.model import Definition
from vitrine.pipeline_files.yaml_text import FILE_SUFFIX

SCHEMA_FILE = "pipeline.schema.json"


def schema_text() -> str:
    return json.dumps(_schema(), indent=1, ensure_ascii=False) + "\n"


def _schema() -> dict[str, Any]:
    """The schema of a definition with what only a file may contain: the id, and names of other files."""
    schema = Definition.model_json_schema()
    definitions, properties = schema["$defs"], schema["properties"]
    # editors know this draft best, and the schema uses nothing newer
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "A Vitrine pipeline"} | {
        name: value for name, value in schema.items() if name != "title"
    }
    properties["id"] = {"type": "string", "format": "uuid", "description": "The id that a new pipeline gets."}
    properties[f"source_query{FILE_SUFFIX}"] = _file_of("source_query", "The query")
    step = definitions["Step"]["properties"]
    step[f"body{FILE_SUFFIX}"] = _file_of("body", "The body of an SQL step")
    options = definitions["Options"]["properties"]
    named = {"type": "string", "description": "Name of a .yaml or .json file beside this one."}
    for name, option in list(options.items()):
        if option.pop("file", False):
            options[name] = {"anyOf": [option, named]}
    return schema


def _file_of(field: str, what: str) -> dict[str, Any]:
    return {
        "type": "string",
        "pattern": r"\.sql$",
        "description": f"{what} in a .sql file beside this one, instead of {field}.",
        "examples": ["top_genres.sql"],
    }
