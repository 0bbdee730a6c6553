"""A trial changes only a copy of the package."""

collect_ignore_glob = ["kind/*", "family/*", "setting/*"]
