"""The parts of `vitrine demo` and `vitrine up`: an embedded PostgreSQL, the sample cinema and its pipelines."""
