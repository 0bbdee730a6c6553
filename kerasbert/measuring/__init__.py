"""Exported models against each other: how fast, how large, how far from the model."""
