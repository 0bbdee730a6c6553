"""What is made of each file of a corpus, as shards: on one machine, or on many by Apache Beam.

A shard has rows of one file, in their order, so that a file is read in one place and shards are
made in many. Each is there whole or not at all, and the same call goes on with what is done.
"""

import hashlib
import json
import os

import keras
import numpy as np

from kerasbert.data.beam import local_copy, matched, need_beam, write_whole
from kerasbert.data.corpus import as_paths, check_found
from kerasbert.files import in_use, names_in, new_file, output_folder, read_json, write_json
from kerasbert.storage import find, is_url


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
    paths = sorted({path for given in corpus for path in found_here(given)[1]})
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

    sizes = {path: size for given in corpus for path, size in matched(given)[1].items()}
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


def found_here(given):
    """Files of this machine, as `kerasbert.storage.find` has them, by their whole paths."""
    if is_url(given):
        raise ValueError(f"'{given}' is a URL, which Beam alone reads here; choose a runner.")
    kind, found = find(os.path.expanduser(given))
    check_found(given, found, kind)
    return kind, {os.path.abspath(path): size for path, size in found.items()}


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
