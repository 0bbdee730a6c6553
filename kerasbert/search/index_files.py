"""The files of an index, and their manifest."""

import os
import warnings

import numpy as np

from kerasbert.base.errors import check_value, is_whole
from kerasbert.base.files import check_space, names_in, read_json, settle
from kerasbert.base.paths import check_file, check_name, check_regular
from kerasbert.search.columns import AGAIN, describe_files
from kerasbert.search.engines import REMAKE

_FORMAT = 1
# Earlier versions would lose the metadata, so they must refuse this format.
_FORMAT_OF_METADATA = 2
MANIFEST = "index.json"
# Saved arguments of the index.
SETTINGS = (
    "dtype",
    "dims",
    "rescore",
    "engine",
    "engine_options",
    "similarity",
    "query_prompt",
    "text_prompt",
    "batch_size",
)
# Files of texts and of vectors that may be memory-mapped.
_MAPPED = ("texts.bin", "ids.bin", "ids.npy", "metadata.bin")
_VECTORS = ("bits.npy", "vectors.npy", "scales.npy")
_COPY = "copy the whole index again"


def check_target(target, overwrite):
    """Raise a `ValueError` if an index may not be written to a folder."""
    names = names_in(target)
    if not names:
        return
    if MANIFEST not in names:
        raise ValueError(
            f"'{target}' is not empty and has no search index, so it is not replaced; choose "
            "another folder."
        )
    if not overwrite:
        raise ValueError(
            f"'{target}' already has a search index; pass overwrite=True, or choose another folder."
        )


def write_columns(folder, columns, keep):
    """Write the rows chosen by a mask (N,) of columns, a dict of file name to column."""
    size = sum(column.size(keep) for column in columns.values())
    check_space(folder, size, "vectors and texts")
    for name, column in columns.items():
        column.write(os.path.join(folder, name), keep)


def write_files(folder, rows, neighbors, probe):
    """Write an index's rows and engine, and return their part of the manifest.

    Args:
        folder: string.
        rows: `Rows`.
        neighbors: `Neighbors`.
        probe: float32 array for `probe.npy`, or `None`.
    """
    # For an engine's row numbers, removed rows are written too, unless they are a tenth of all or
    # more.
    keep, engine = rows.alive, neighbors.engine
    if engine is not None and 10 * (len(keep) - len(rows)) < len(keep):
        keep = np.ones(len(keep), bool)
    write_columns(folder, rows.columns() | neighbors.columns(), keep)
    empty = rows.write_masks(folder, keep)
    if engine is not None and keep.all():
        engine.write(os.path.join(folder, f"engine.{engine.name}"))
    if probe is not None:
        np.save(os.path.join(folder, "probe.npy"), probe)
    return {
        "format": _FORMAT if rows.metadata is None else _FORMAT_OF_METADATA,
        "rows": int(keep.sum()),
        "count": len(rows),
        "empty": empty,
        "width": neighbors.width,
        "string_ids": rows.have_string_ids,
        "metadata": rows.metadata is not None,
        "probe": probe is not None,
        "files": describe_files(folder),
    }


def read_manifest(directory):
    """Return the manifest of an index, or raise a `ValueError`."""
    if not os.path.isdir(directory):
        raise ValueError(f"There is no folder '{directory}'; pass one that `save` wrote.")
    settle(directory)
    path = os.path.join(directory, MANIFEST)
    if not os.path.exists(path):
        raise ValueError(f"'{directory}' is not a search index: it has no {MANIFEST}.")
    manifest = read_json(path)
    _check_manifest(manifest, path)
    return manifest


def _check_manifest(manifest, path):
    version = manifest.get("format")
    if version not in (_FORMAT, _FORMAT_OF_METADATA) or isinstance(version, bool):
        raise ValueError(
            f"'{path}' has format {version!r}, but this version reads {_FORMAT} and "
            f"{_FORMAT_OF_METADATA}; update kerasbert, or make the index again."
        )
    for name in ("rows", "count", "width", "embedder_width"):
        if not is_whole(manifest.get(name)) or manifest[name] < 0:
            raise ValueError(
                f"{name}={manifest.get(name)!r} in '{path}' must be a whole number from 0; {_COPY}."
            )
    check_value("empty", manifest.get("empty", 0), "whole", path)
    for name in ("metadata", "keywords"):  # Earlier indexes lack these.
        check_value(name, manifest.get(name, False), "flag", path)
    check_value("splitter", manifest.get("splitter", {}), "object", path)
    missing = [name for name in (*SETTINGS, "string_ids", "probe") if name not in manifest]
    if missing or manifest["count"] > manifest["rows"]:
        what = f"has no {', '.join(missing)}" if missing else "counts more texts than rows"
        raise ValueError(f"'{path}' {what}; {_COPY}.")
    width = manifest["dims"] or manifest["embedder_width"]
    if (manifest["rows"] and not manifest["width"]) or manifest["width"] not in (0, width):
        raise ValueError(
            f"width={manifest['width']} in '{path}' contradicts dims={manifest['dims']} and "
            f"embedder_width={manifest['embedder_width']}; {_COPY}."
        )
    if not isinstance(manifest["engine_options"], dict):
        raise ValueError(
            f"engine_options={manifest['engine_options']!r} in '{path}' must be an object; {_COPY}."
        )
    files = manifest.get("files", {})
    check_value("files", files, "object", path)
    for name, described in files.items():
        check_name(name, path)
        check_value(name, described, "object", path)
        check_value(f"bytes of {name}", described.get("bytes"), "whole", path)
        check_value(f"sha256 of {name}", described.get("sha256"), "name", path)


def check_files(directory, manifest, mmap):
    """Verify the sizes of all files, and hashes of those read into memory.

    Returns:
        Whether the engine's file may be read, if it exists.
    """
    engine = f"engine.{manifest['engine']}"
    path = os.path.join(directory, engine)
    check_regular(path)
    has_engine = os.path.exists(path)
    files = manifest.get("files")
    if files is None:
        if has_engine:
            warnings.warn(
                f"'{path}' was written by a version without hashes and is not loaded: the "
                "engine is rebuilt from the vectors. Save the index again to keep it.",
                stacklevel=4,
            )
        return False
    if has_engine and engine not in files:
        raise ValueError(f"'{path}' is damaged (the index was saved without an engine); {REMAKE}.")
    for name, described in files.items():
        if name == engine:
            if has_engine:
                check_file(path, described, True, REMAKE)
            continue
        hashed = name not in (*_MAPPED, *_VECTORS) or not mmap
        hashed = hashed or (has_engine and name in _VECTORS)
        hashed = hashed and name != "probe.npy"  # `check_same_model` checks its content.
        check_file(os.path.join(directory, name), described, hashed, AGAIN)
    return True
