"""Where rows come from, one file per kind of source."""
