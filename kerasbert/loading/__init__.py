"""From a name to a directory, from a directory to settings and weights; no model is made here."""
