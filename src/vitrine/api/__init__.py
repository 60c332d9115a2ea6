"""The REST API: configuration, requests, status and history; a runner executes the runs."""
