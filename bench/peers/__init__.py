"""Other tools doing the same work, each from its own packages and as its documentation recommends."""
