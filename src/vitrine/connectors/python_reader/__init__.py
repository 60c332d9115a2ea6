"""Registered Python readers as a source."""

from vitrine.definition.connectors import Connector, SourceSpec
from vitrine.definition.model import PYTHON_READER

connector = Connector(PYTHON_READER, source=SourceSpec("vitrine.connectors.python_reader.source:PythonReaderSource"))
