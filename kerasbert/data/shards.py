"""What is made of each file of a corpus, as shards: on one machine, or on many by Apache Beam.

A shard has rows of one file, in their order, so that a file is read in one place and shards are
made in many. Each is there whole or not at all, and the same call goes on with what is done.
"""

import glob
import hashlib
import json
import os

import keras
import numpy as np

from kerasbert.data.beam import local_copy, need_beam, write_whole
from kerasbert.data.corpus import as_paths
from kerasbert.files import in_use, names_in, new_file, output_folder, read_json, write_json


def write_shards(corpus, output, *, what, by, model, settings, endings, read, make, options=None):
    """Write the shards, and `what` + ".json", which says what they were made of.

    With `options`, `read` and `make` are pickled, and load the model where they run.

    Args:
        corpus: path of a file or a folder, a pattern, or a list of these; with `options` as Beam
            names them (`gs://`, `s3://`, `hdfs://`).
        output: path of a folder.
        what: string. What is made, such as "vectors".
        by: string. The function that makes it, for errors.
        model, settings: dicts of plain values that the shards depend on.
        endings: tuple of the endings of a shard's files; that of the last is written last.
        read: function `(name, path)` of a file, that yields `(rows, part)`: how many rows a shard
            will have, and what `make` takes.
        make: function `(shard, part)`, that yields the bytes of its files in their order.
        options: `apache_beam.options.pipeline_options.PipelineOptions`; `None` needs no Beam.

    Returns:
        The manifest, a dict: `count` of rows, `shards`, `files`, `model`, `settings`.

    Raises:
        ValueError: in a sentence for a corpus that is not there or has no rows, and for a folder
            with shards of another model, other settings or another corpus.
    """
    given, output = as_paths(corpus), os.fspath(output)
    manifest = {"format": 1, "complete": False, "model": model, "settings": settings}
    manifest |= {"files": [], "shards": []}
    work = _Work(what, endings, read, make)
    if options is not None:
        need_beam()
        return _by_beam(given, output, manifest, work, options)
    output = output_folder(output, "output")
    with in_use(output, by):
        return _here(given, output, manifest, work)


class _Work:
    """What is to be done, as the workers of Beam get it."""

    def __init__(self, what, endings, read, make):
        self.what, self.endings, self.read, self.make = what, endings, read, make
        self.manifest = f"{what}.json"

    def parts(self, number, name, path):
        """Yield `(shard, rows, part)` of a file."""
        for place, (rows, part) in enumerate(self.read(name, path)):
            yield f"{self.what}-{number:05}-{place:05}", rows, part

    def last(self, shard):
        return shard + self.endings[-1]

    def files(self, shard, part):
        """Yield `(name, bytes)`."""
        yield from zip((shard + ending for ending in self.endings), self.make(shard, part))

    def completed(self, manifest, shards, corpus):
        shards = sorted(shards, key=lambda shard: shard["name"])
        count = sum(shard["rows"] for shard in shards)
        if not count:
            raise ValueError(f"The corpus {corpus!r} has no texts.")
        return {**manifest, "complete": True, "shards": shards, "count": count}

    def check_same(self, there, manifest, output):
        for name, what in (("model", "another model"), ("files", "another corpus")):
            if there.get(name) != manifest[name]:
                raise ValueError(f"'{output}' has {self.what} of {what}; name another folder.")
        for name, value in manifest["settings"].items():
            made = there["settings"].get(name)
            if made != value:
                raise ValueError(
                    f"'{output}' has {self.what} with {name}={made!r}, not {value!r}; name another "
                    "folder."
                )


def _here(corpus, output, manifest, work):
    paths = paths_of(corpus)
    paths = list(zip(own_names(paths), paths))
    manifest["files"] = [[name, os.path.getsize(path)] for name, path in paths]
    path = os.path.join(output, work.manifest)
    # What was refused before its first shard leaves the folder to a corpus that was mended.
    if os.path.exists(path) and names_in(output) != [work.manifest]:
        work.check_same(read_json(path), manifest, output)
    else:
        write_json(path, manifest)
    shards = []
    for number, (name, file) in enumerate(paths):
        for shard, rows, part in work.parts(number, name, file):
            if not os.path.exists(os.path.join(output, work.last(shard))):
                for made, data in work.files(shard, part):
                    with new_file(os.path.join(output, made)) as written:
                        written.write(data)
            shards.append({"name": shard, "rows": rows})
    manifest = work.completed(manifest, shards, corpus)
    write_json(path, manifest)
    return manifest


def _by_beam(corpus, output, manifest, work, options):
    import apache_beam as beam
    from apache_beam.io.filesystems import FileSystems

    sizes = matched(corpus)
    paths = sorted(sizes)
    names = own_names(paths)
    manifest["files"] = [[name, sizes[path]] for name, path in zip(names, paths)]
    path = FileSystems.join(output, work.manifest)
    if FileSystems.exists(path):
        with FileSystems.open(path) as file:
            work.check_same(json.loads(file.read()), manifest, output)
    else:
        write_whole(output, work.manifest, json.dumps(manifest).encode())
    with beam.Pipeline(options=options) as pipeline:
        _ = (
            pipeline
            | beam.Create(list(zip(range(len(paths)), names, paths)))
            | beam.Reshuffle()
            | "read" >> beam.FlatMap(_read, work=work, output=output)
            | "to all workers" >> beam.Reshuffle()
            | "make" >> beam.Map(_write, work=work, output=output)
            | beam.combiners.ToList()
            | "manifest"
            >> beam.Map(_end, work=work, manifest=manifest, corpus=corpus, output=output)
        )
    with FileSystems.open(path) as file:
        return json.loads(file.read())


def _read(found, work, output):
    """Yield `(shard, rows, part)` of a file, without the part where the shard is there."""
    from apache_beam.io.filesystems import FileSystems

    number, name, path = found
    with local_copy(path) as local:
        for shard, rows, part in work.parts(number, name, local):
            is_there = FileSystems.exists(FileSystems.join(output, work.last(shard)))
            yield shard, rows, None if is_there else part


def _write(found, work, output):
    shard, rows, part = found
    if part is not None:
        for name, data in work.files(shard, part):
            write_whole(output, name, data)
    return {"name": shard, "rows": rows}


def _end(shards, work, manifest, corpus, output):
    manifest = work.completed(manifest, shards, corpus)
    write_whole(output, work.manifest, json.dumps(manifest, indent=1).encode())


# === The corpus ===


def _is_hidden(path):
    return os.path.basename(path).startswith(".")


def matched(corpus):
    """Bytes of files by their paths, of a list of what Beam takes for names and patterns.

    A folder is all that is in it.
    """
    from apache_beam.io.filesystems import FileSystems

    patterns = [FileSystems.join(x, "**") if os.path.isdir(x) else x for x in corpus]
    found = [one for match in FileSystems.match(patterns) for one in match.metadata_list]
    sizes = {one.path: one.size_in_bytes for one in found if not _is_hidden(one.path)}
    if not sizes:
        raise ValueError(f"There is no file {corpus!r}, nor any that it matches as a pattern.")
    return sizes


def paths_of(corpus):
    """Paths of the files of a list of files, folders and patterns, sorted."""
    found = set()
    for given in corpus:
        path = os.path.expanduser(given)
        inside = os.path.join(glob.escape(path), "**") if os.path.isdir(path) else path
        paths = [x for x in glob.glob(inside, recursive=True) if os.path.isfile(x)]
        paths = [x for x in paths if not _is_hidden(x)]
        if not paths:
            if os.path.isdir(path):
                raise ValueError(f"The folder '{given}' has no files.")
            raise ValueError(f"There is no file '{given}', nor any that it matches as a pattern.")
        found.update(map(os.path.abspath, paths))
    return sorted(found)


def own_names(paths):
    """What tells files apart: their paths without the folder that has them all.

    >>> own_names(["/a/b/one.txt", "/a/two.txt"])
    ['b/one.txt', 'two.txt']
    """
    above = os.path.commonprefix([os.path.dirname(path) + "/" for path in paths])
    above = above[: above.rfind("/") + 1]
    return [path.removeprefix(above) for path in paths]


# === The model ===


def weights_digest(model):
    """The SHA-256 of a model's weights as float32, a string."""
    weights = hashlib.sha256()
    for weight in model.weights:
        value = keras.ops.convert_to_numpy(keras.ops.cast(weight.value, "float32"))
        weights.update(np.ascontiguousarray(value))
    return weights.hexdigest()
