"""The parts of `vitrine demo` and `vitrine up`: the sample cinema, its pipelines, and what the commands show."""
