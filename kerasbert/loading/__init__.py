"""Preset loading, up to the model: names to directories, directories to settings and weights."""
