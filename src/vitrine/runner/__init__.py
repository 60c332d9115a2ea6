"""The data plane: claims pipelines and moves their batches; any number of processes side by side."""
