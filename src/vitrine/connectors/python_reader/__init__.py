"""Registered Python readers as a source."""

from vitrine.model import PYTHON_READER
from vitrine.plugins import Connector, SourceSpec

connector = Connector(PYTHON_READER, source=SourceSpec("vitrine.connectors.python_reader.source:PythonReaderSource"))
