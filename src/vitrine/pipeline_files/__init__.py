"""Pipelines as YAML files: one file per pipeline, with the same fields as the API."""

from vitrine.pipeline_files.reading import Reading, read, read_folder
from vitrine.pipeline_files.schema import SCHEMA_FILE, schema_text
from vitrine.pipeline_files.starting import Starting
from vitrine.pipeline_files.variables import Variables, read_variables
from vitrine.pipeline_files.writing import format_text, write_folder
from vitrine.pipeline_files.yaml_text import parse_text

__all__ = [
    "SCHEMA_FILE",
    "Reading",
    "Starting",
    "Variables",
    "format_text",
    "parse_text",
    "read",
    "read_folder",
    "read_variables",
    "schema_text",
    "write_folder",
]
