"""Web pages over the same functions that the API and the command line use."""
