"""What `vitrine demo` and `vitrine up` bring with them: a PostgreSQL, a sample cinema and its pipelines."""
