"""What a trial adds belongs to a copy of the package alone."""

collect_ignore_glob = ["kind/*", "family/*"]
