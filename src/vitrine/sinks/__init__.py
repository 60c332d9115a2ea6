"""Where rows go, one file per kind of target."""
