"""Sharded output for each file of a corpus, also with Apache Beam.

A shard holds consecutive rows of one file, which one worker reads while many make shards,
atomically. The manifest, and until it is complete a hidden file next to each shard, records sizes
and hashes of the shard's files and the hash of its corpus file. A repeated call rebuilds only
missing or damaged shards.
"""

import contextlib
import hashlib
import json
import os
import re

import keras
import numpy as np

from kerasbert.base.errors import check_value, reading
from kerasbert.base.files import in_use, names_in, new_file, output_folder, read_json, write_json
from kerasbert.base.paths import check_file, check_name, check_regular, file_sha256, inside, is_url
from kerasbert.base.storage import find
from kerasbert.base.strict_json import to_json
from kerasbert.data.beam import local_copy, matched, need_beam, open_raw, write_whole
from kerasbert.data.corpus_files import as_paths, check_found


def write_shards(
    corpus, output, *, what, by, model, settings, endings, read, make, fits, options=None
):
    """Write the shards, and the manifest, which is named `what` + ".json".

    With `options`, `read` and `make` load the model on workers.

    Args:
        corpus: path of a file or a folder, a pattern, or a list of these; with `options` as Beam
            names them (`gs://`, `s3://`, `hdfs://`).
        output: path of a folder.
        what: the name of the rows, such as "vectors".
        by: string. The public function, for errors.
        model, settings: dicts of plain values that the shards depend on.
        endings: tuple of strings. Endings of a shard's files, as written.
        read: function `(name, path)` of a corpus file that yields `(rows, part)` per shard: its
            number of rows, and the input of `make`.
        make: function `(shard, part)` that yields the bytes of the shard's files in order.
        fits: function `(contents, part)`: may the bytes of a shard's files be the output of `make`?
            For shards of earlier versions, without hashes.
        options: `apache_beam.options.pipeline_options.PipelineOptions`; `None` runs without Beam.

    Returns:
        The manifest, a dict: `count` of rows, `shards`, `files`, `model`, `settings`.

    Raises:
        ValueError: for a corpus that is missing or has no rows, and a folder with shards of another
            model, settings or corpus.
    """
    given, output = as_paths(corpus), os.fspath(output)
    manifest = {"format": 1, "complete": False, "hashed": True, "model": model}
    manifest |= {"settings": settings, "files": [], "shards": []}
    work = _Work(what, endings, read, make, fits, model, settings)
    if options is not None:
        need_beam()
        return _by_beam(given, output, manifest, work, options)
    output = output_folder(output, "output")
    with in_use(output, by):
        return _here(given, output, manifest, work)


class _Work:
    """A job of `write_shards`, in the form that is sent to Beam's workers."""

    def __init__(self, what, endings, read, make, fits, model, settings):
        self.what, self.endings, self.read, self.make, self.fits = what, endings, read, make, fits
        self.manifest = f"{what}.json"
        self.made_with = _sha256(to_json([model, settings]).encode())
        # Whether the folder was written by an earlier version, which recorded no hashes.
        self.is_unhashed = False

    def begin(self, there, manifest, output):
        """Check an existing manifest's model and settings; return its shards."""
        if not isinstance(there, dict) or not isinstance(there.get("settings"), dict):
            return {}  # Damaged: shards without a hidden file are rebuilt.
        self._check_same(there, manifest, output)
        self.is_unhashed = not there.get("hashed")
        rows = there.get("shards")
        rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        return {str(row.get("name")): row for row in rows}

    def shards(self, number, name, path, known, store):
        """Yield `(record, part)` per shard of a file, `part` `None` if intact."""
        check_regular(path)
        source = file_sha256(path)
        for place, (rows, part) in enumerate(self.read(name, path)):
            shard = f"{self.what}-{number:05}-{place:05}"
            record = {"name": shard, "rows": rows, "source_sha256": source}
            found = self._found(shard, known.get(shard), part, store)
            if found is None:
                yield record, part
                continue
            if found.setdefault("source_sha256", source) != source:
                raise _other("corpus", self.what, store.folder)
            yield {**found, **record}, None if found.setdefault("rows", rows) == rows else part

    def write(self, record, part, store):
        """Write a shard, then its record of sizes and hashes, and return that."""
        shard, files = record["name"], []
        for name, data in zip(self._names(shard), self.make(shard, part)):
            store.write(name, data)
            files.append(_described(name, data))
        record = {**record, "files": files}
        written = to_json({**record, "made_with": self.made_with})
        store.write(_record_name(shard), written.encode())
        return record

    def _names(self, shard):
        return [shard + ending for ending in self.endings]

    def _found(self, shard, known, part, store):
        """Return the record of an intact shard, or `None`."""
        contents = [store.read(name) for name in self._names(shard)]
        if None in contents:
            return None
        files = [_described(*pair) for pair in zip(self._names(shard), contents)]
        beside, own = store.read(_record_name(shard)), None
        with contextlib.suppress(ValueError):
            own = json.loads(beside or b"null")
        if isinstance(own, dict) and own.pop("made_with", None) == self.made_with:
            if own.get("files") == files:
                return own
        if known is not None and known.get("files") == files:
            return dict(known)
        if self.is_unhashed and beside is None and "files" not in (known or {}):
            if self.fits(contents, part):
                return {"files": files}
        return None

    def completed(self, manifest, shards, corpus):
        shards = sorted(shards, key=lambda shard: shard["name"])
        count = sum(shard["rows"] for shard in shards)
        if not count:
            raise ValueError(f"The corpus {corpus!r} has no texts.")
        return {**manifest, "complete": True, "shards": shards, "count": count}

    def _check_same(self, there, manifest, output):
        for name, what in (("model", "model"), ("files", "corpus")):
            if there.get(name) != manifest[name]:
                raise _other(what, self.what, output)
        for name, value in manifest["settings"].items():
            made = there["settings"].get(name)
            if made != value:
                raise ValueError(
                    f"'{output}' has {self.what} with {name}={made!r}, not {value!r}; name "
                    "another folder."
                )


def _other(what, made, output):
    return ValueError(f"'{output}' has {made} from another {what}; name another folder.")


def _here(corpus, output, manifest, work):
    paths = sorted({path for given in corpus for path in found_here(given)[1]})
    paths = list(zip(own_names(paths), paths))
    manifest["files"] = [[name, os.path.getsize(path)] for name, path in paths]
    path, store, known = os.path.join(output, work.manifest), _Folder(output), {}
    # If the last run failed before its first shard, the corpus may have changed.
    if os.path.exists(path) and names_in(output) != [work.manifest]:
        known = work.begin(_json_of(store.read(work.manifest)), manifest, output)
    if not known and not work.is_unhashed:
        write_json(path, manifest)
    shards = []
    for number, (name, file) in enumerate(paths):
        for record, part in work.shards(number, name, file, known, store):
            shards.append(record if part is None else work.write(record, part, store))
    manifest = work.completed(manifest, shards, corpus)
    write_json(path, manifest)
    store.remove([_record_name(shard["name"]) for shard in shards])
    return manifest


def _by_beam(corpus, output, manifest, work, options):
    import apache_beam as beam

    sizes = {path: size for given in corpus for path, size in matched(given)[1].items()}
    paths = sorted(sizes)
    names = own_names(paths)
    manifest["files"] = [[name, sizes[path]] for name, path in zip(names, paths)]
    store, known = _FarFolder(output), {}
    there = store.read(work.manifest)
    if there is not None:
        known = work.begin(_json_of(there), manifest, output)
    if not known and not work.is_unhashed:
        store.write(work.manifest, to_json(manifest).encode())
    # Each worker gets the records of its file.
    known_of = [{} for _ in paths]
    for shard, record in known.items():
        if found := re.fullmatch(rf"{work.what}-(\d+)-\d+", shard):
            if int(found[1]) < len(known_of):
                known_of[int(found[1])][shard] = record
    with beam.Pipeline(options=options) as pipeline:
        _ = (
            pipeline
            | beam.Create(list(zip(range(len(paths)), names, paths, known_of)))
            | beam.Reshuffle()
            | "read" >> beam.FlatMap(_read, work=work, store=store)
            | "to all workers" >> beam.Reshuffle()
            | "make" >> beam.Map(_write, work=work, store=store)
            | beam.combiners.ToList()
            | "manifest" >> beam.Map(_end, work=work, manifest=manifest, corpus=corpus, store=store)
        )
    return json.loads(store.read(work.manifest))


def _read(found, work, store):
    """Yield `(record, part)` of a file, like `_Work.shards`."""
    number, name, path, known = found
    with local_copy(path) as local:
        yield from work.shards(number, name, local, known, store)


def _write(found, work, store):
    record, part = found
    return record if part is None else work.write(record, part, store)


def _end(shards, work, manifest, corpus, store):
    manifest = work.completed(manifest, shards, corpus)
    store.write(work.manifest, to_json(manifest, indent=1).encode())
    store.remove([_record_name(shard["name"]) for shard in shards])


# === Files of a folder ===


class _Folder:
    """Reads and writes the files of a local folder."""

    def __init__(self, folder):
        self.folder = folder

    def read(self, name):
        """Return the bytes of a file, or `None` if there is none."""
        path = os.path.join(self.folder, name)
        check_regular(path)
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def write(self, name, data):
        with new_file(os.path.join(self.folder, name)) as file:
            file.write(data)

    def remove(self, names):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.folder, name))


class _FarFolder:
    """Reads and writes, like `_Folder`, the files of any folder that Beam can access."""

    def __init__(self, folder):
        self.folder = folder

    def read(self, name):
        from apache_beam.io.filesystems import FileSystems

        path = FileSystems.join(self.folder, name)
        if not FileSystems.exists(path):
            return None
        with open_raw(path) as file:
            return file.read()

    def write(self, name, data):
        write_whole(self.folder, name, data)

    def remove(self, names):
        from apache_beam.io.filesystems import FileSystems

        paths = (FileSystems.join(self.folder, name) for name in names)
        if found := [path for path in paths if FileSystems.exists(path)]:
            FileSystems.delete(found)


def _record_name(shard):
    return f".{shard}.json"


def _described(name, data):
    return {"name": name, "bytes": len(data), "sha256": _sha256(data)}


def _json_of(data):
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _sha256(data):
    return hashlib.sha256(data).hexdigest()


# === Reading ===


def read_shards(folder, *, what, by, endings, decode):
    """Read the output of `write_shards`, with verified sizes and hashes.

    Args:
        folder: path of a folder.
        what, by: as for `write_shards`.
        endings: function of the manifest's settings that returns the endings of a shard's files.
        decode: function `(paths, settings)` of a shard's files that returns a tuple of contents,
            the first with a row each.

    Yields:
        The result of `decode` for each shard.

    Raises:
        ValueError: if the folder is incomplete, or a file is missing or damaged.
    """
    folder = os.path.abspath(os.path.expanduser(os.fspath(folder)))
    path = os.path.join(folder, f"{what}.json")
    if not os.path.exists(path):
        raise ValueError(f"'{folder}' has no {what}.json; name a folder that {by} wrote.")
    manifest = read_json(path)
    if not manifest.get("complete"):
        raise ValueError(f"'{folder}' is incomplete; run the same {by} again.")
    again = f"run the same {by} again, which rebuilds it"
    rows = manifest.get("shards")
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict):
            check_name(row.get("name"), path)
    try:
        _check_manifest(manifest, what)
        ends = endings(manifest["settings"])
    except ValueError as error:
        raise ValueError(f"'{path}' is damaged ({str(error).rstrip('.')}); {again}.") from None
    shards = []
    for shard in manifest["shards"]:
        names = [shard["name"] + ending for ending in ends]
        paths = [inside(folder, name, path) for name in names]
        # Earlier manifests do not list files.
        files = shard.get("files") or [{"name": name} for name in names]
        if [file["name"] for file in files] != names:
            raise ValueError(f"'{path}' is damaged (the files of '{shard['name']}'); {again}.")
        for one, file in zip(paths, files):
            check_file(one, file, hashed=False, then=again)
        shards.append((shard, paths, files))
    for shard, paths, files in shards:
        for one, file in zip(paths, files):
            check_file(one, file, hashed=True, then=again)
        with reading(paths[-1], again):
            found = decode(paths, manifest["settings"])
        rows = len(found[0])
        if rows != shard["rows"]:
            raise ValueError(f"'{paths[-1]}' has {rows} rows, expected {shard['rows']}; {again}.")
        yield found


def _check_manifest(manifest, what):
    """Raise a `ValueError` unless the fields of a manifest have the expected kinds."""
    check_value("settings", manifest.get("settings"), "object")
    check_value("shards", manifest.get("shards"), "list")
    before = ""
    for shard in manifest["shards"]:
        check_value("a shard", shard, "object")
        check_value("name", shard.get("name"), "name")
        check_value("rows", shard.get("rows"), "count")
        if not re.fullmatch(rf"{what}-\d+-\d+", shard["name"]) or shard["name"] <= before:
            raise ValueError(f"the shard {shard['name']!r} is out of order")
        before = shard["name"]
        check_value("files", shard.get("files", []), "list")
        for file in shard.get("files", ()):
            check_value("a file", file, "object")
            check_value("name", file.get("name"), "name")
            check_value("bytes", file.get("bytes"), "whole")
            check_value("sha256", file.get("sha256"), "name")
        if manifest.get("hashed") and not shard.get("files"):
            raise ValueError(f"no hash of '{shard['name']}'")
    count = sum(shard["rows"] for shard in manifest["shards"])
    if not count or count != manifest.get("count"):
        raise ValueError(f"count={manifest.get('count')!r}, but its shards have {count} rows")


# === The corpus ===


def found_here(given):
    """Find local files as `kerasbert.base.storage.find` does, with absolute paths."""
    if is_url(given):
        raise ValueError(f"'{given}' is a URL, which only Beam can read here; choose a runner.")
    kind, found = find(os.path.expanduser(given))
    check_found(given, found, kind)
    return kind, {os.path.abspath(path): size for path, size in found.items()}


def own_names(paths):
    """Remove the common parent folder from paths.

    >>> own_names(["/a/b/one.txt", "/a/two.txt"])
    ['b/one.txt', 'two.txt']
    """
    paths = [path.replace(os.sep, "/") for path in paths]
    above = os.path.commonprefix([path[: path.rfind("/") + 1] for path in paths])
    above = above[: above.rfind("/") + 1]
    return [path.removeprefix(above) for path in paths]


# === The model ===


def weights_digest(model):
    """Return the SHA-256 of a model's weights as float32, a string."""
    weights = hashlib.sha256()
    for weight in model.weights:
        value = keras.ops.convert_to_numpy(keras.ops.cast(weight.value, "float32"))
        weights.update(np.ascontiguousarray(value))
    return weights.hexdigest()
