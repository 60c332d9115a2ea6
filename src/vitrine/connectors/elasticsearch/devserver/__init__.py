"""A real Elasticsearch on this machine, for development and tests."""

from vitrine.connectors.elasticsearch.devserver.server import DevServer

__all__ = ["DevServer"]
