"""Models for serving: a SavedModel that takes raw strings."""

from kerasbert.export.serving import export_serving as export_serving
