"""schemathesis against the API as a process: every route with valid and invalid requests, alone and in sequences."""
