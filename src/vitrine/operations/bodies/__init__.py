"""Models of what the service takes and returns; in the API they are the JSON bodies."""
