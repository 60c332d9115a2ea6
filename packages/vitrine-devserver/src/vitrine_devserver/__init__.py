"""A real Elasticsearch on this machine, for development and tests."""

from vitrine_devserver.server import DevServer

__all__ = ["DevServer"]
