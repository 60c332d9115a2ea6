"""The data plane: claims pipelines and moves their batches, in any number of processes."""
