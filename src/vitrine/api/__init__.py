"""The REST API: configuration, requests, status and history. It asks; a runner acts."""
