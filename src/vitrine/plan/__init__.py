"""From a definition to the steps of a run."""
