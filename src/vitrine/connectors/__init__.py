"""Systems that can be read or written, one folder each; connectors do not import one another."""
