"""Names that are read from files and become part of a path must go through `paths.inside`."""

import ast
import json
import os
import pathlib
import shutil

import numpy as np
import pytest

import kerasbert
from kerasbert import SearchIndex, data, tasks
from kerasbert.base import paths, storage
from kerasbert.checkpoints import sentence_modules
from kerasbert.checkpoints.checkpoint import TensorFiles
from kerasbert.checkpoints.own import OwnPreset
from kerasbert.data.manifest import shard_path
from kerasbert.heads.base.data_task import Task
from kerasbert.search.embed_corpus import _ENDINGS, read_vectors
from kerasbert.training.evaluation import RECORD
from kerasbert.training.finetune_results import write_results
from kerasbert.training.grid_search import GridSearch
from kerasbert.training.predict_corpus import read_predictions

PACKAGE = pathlib.Path(kerasbert.__file__).parent

# === Source code ===

# Functions that return the content of a file, and those that pass it on.
READERS = set("read_json json_in _read_json read_manifest read_log load loads _read_runs".split())
PASSING = "sorted list dict set tuple map filter str items values keys get enumerate zip pop"
PASSING = set(f"{PASSING} setdefault removeprefix removesuffix".split())
# Functions that take or create a path.
SINKS = """
    join open path remove unlink rmtree rmdir rename replace link symlink copyfile copytree move
    makedirs mkdir new_file new_folder new_files write_text write_json write_bytes read_text
    read_bytes Path memmap fromfile link_files scratch put glob open_file save load_assets get_file
    exists isdir isfile from_preset
"""
SINKS = set(SINKS.split())
CHECKS = {"inside", "check_name", "basename"}
# Exceptions, with the reason why the file cannot come from another user.
FINE = {
    ("base/moves.py", "_end_move"): "a plan, which `_read_plan` has checked",
    ("data/shards.py", "_here"): "records of shards that it has made or checked",
    ("data/shards.py", "_end"): "records of shards that it has made or checked",
    ("training/methods.py", "*"): "the preset that the user named, in `shared`",
    ("checkpoints/sentence_modules.py", "write_module_files"): "modules that it just made",
    ("training/finetune_results.py", "_take_model"): "folders that it lists or has checked",
    ("measuring/bench.py", "*"): "a job that this process wrote",
    ("measuring/contestant.py", "*"): "a job that our own process wrote",
}


def name_of(call):
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def is_read(node):
    """Return whether a call returns the content of a JSON file; not `np.load`, for example."""
    if not isinstance(node, ast.Call) or name_of(node) not in READERS:
        return False
    if name_of(node) in ("load", "loads"):
        return isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") == "json"
    return True


class Names:
    """The variables of a function that hold the content of files, found by a fixed point."""

    def __init__(self, nodes):
        self.known, pairs = set(), []
        for node in nodes:
            if isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)) and node.value:
                pairs.append((node.target, node.value))
            elif isinstance(node, ast.Assign):
                pairs += [(target, node.value) for target in node.targets]
            elif isinstance(node, (ast.For, ast.comprehension)):
                pairs += self.in_step(node.target, node.iter)
        before = None
        while before != len(self.known):
            before = len(self.known)
            for target, value in pairs:
                if self.holds(value):
                    self.known.update(self.variables(target))

    def in_step(self, target, values):
        """Return a loop's assignments as pairs of target and value; each target of a `zip` has its
        own value.
        """
        is_zip = isinstance(values, ast.Call) and name_of(values) == "zip"
        if is_zip and isinstance(target, ast.Tuple) and len(target.elts) == len(values.args):
            return list(zip(target.elts, values.args))
        return [(target, values)]

    def variables(self, target):
        """Return the names that a value is assigned to; attributes are ignored."""
        if isinstance(target, (ast.Tuple, ast.List)):
            return {name for part in target.elts for name in self.variables(part)}
        if isinstance(target, (ast.Subscript, ast.Starred)):
            return self.variables(target.value)
        return {target.id} if isinstance(target, ast.Name) else set()

    def holds(self, node):
        """Return whether an expression holds unchecked content of a file."""
        if isinstance(node, ast.Call):
            if name_of(node) in CHECKS:
                return False
            if is_read(node):
                return True
            parts = [*node.args, *(keyword.value for keyword in node.keywords)]
            if isinstance(node.func, ast.Attribute):
                parts.append(node.func.value)
            return name_of(node) in PASSING and any(map(self.holds, parts))
        if isinstance(node, ast.Name):
            return node.id in self.known
        if isinstance(node, (ast.Compare, ast.Lambda, ast.Constant)):
            return False
        if isinstance(node, ast.IfExp):
            return self.holds(node.body) or self.holds(node.orelse)
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
            return self.holds(node.elt)
        return any(map(self.holds, ast.iter_child_nodes(node)))


def by_key(node):
    """Return whether an expression takes an unchecked name out of a dict, like `run["run"]`."""
    if isinstance(node, ast.Call):
        if name_of(node) in CHECKS:
            return False
        if name_of(node) == "get" and not ast.unparse(node.func).startswith("os.environ"):
            return True
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        if isinstance(node.slice.value, str) and not ast.unparse(node.value).isupper():
            return True
    return any(map(by_key, ast.iter_child_nodes(node)))


def unchecked(source, file="file.py"):
    """Find calls that use a name from a file as a path: a list of `file:line: call`."""
    tree, found = ast.parse(source), {}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for function in functions:
        if (file, function.name) in FINE or (file, "*") in FINE:
            continue
        nodes = list(ast.walk(function))
        names = Names(nodes) if any(map(is_read, nodes)) else None
        for node in nodes:
            if not isinstance(node, ast.Call) or name_of(node) not in SINKS:
                continue
            if name_of(node) in ("join", "replace") and isinstance(node.func, ast.Attribute):
                if ast.unparse(node.func.value) not in ("os", "os.path", "storage", "FileSystems"):
                    continue  # Methods of strings.
            count = {"rename": 2, "replace": 2, "link": 2, "join": None, "path": None}
            # Other methods do not return paths.
            arguments = node.args[: count.get(name_of(node), 1)]
            if any(by_key(x) or (names and names.holds(x)) for x in arguments):
                found[node.lineno] = f"{file}:{node.lineno}: {ast.unparse(node)[:120]}"
    return [found[line] for line in sorted(found)]


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
def test_no_name_from_a_file_becomes_a_path_unchecked():
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        found += unchecked(path.read_text(encoding="utf-8"), path.relative_to(PACKAGE).as_posix())
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        'remove(self.path("runs", run["run"]))',
        'value = read_json(path)\n    open(value["file"])',
        'for shard in json.load(file)["shards"]:\n        os.path.join(folder, shard)',
        'names = [x.get("path") for x in json_in(path, x)]\n    return [join(a, x) for x in names]',
        'shutil.rmtree(os.path.join(folder, f"{json_in(folder, x)[0]}.json"))',
        'return np.memmap(manifest["vectors"])',
    ],
)
def test_the_search_finds_what_is_unchecked(line):
    assert unchecked(f"def function(self, run):\n    {line}\n")


def test_the_search_lets_pass_what_is_checked():
    assert not unchecked(
        "def function(folder):\n"
        "    value = read_json(os.path.join(folder, NAME))\n"
        "    open(inside(folder, value['file'], folder))\n"
        "    ', '.join(value['names'])\n"
        "    write_json(os.path.join(folder, NAME), value)\n"
    )


# === What `paths.inside` accepts ===

BAD = [
    "/etc/passwd",
    "../outside",
    "..",
    ".",
    "",
    "a/../../outside",
    "a\0b",
    "..\\outside",
    "\ud800",
]
BAD += ["... ", "C:\\outside", "//host/share", None, 7, ["a"], {"a": "b"}]
NOT_PLAIN = ["a/b", "a/", "./a", "NUL", "con.txt", "Com1.json", "C:a", "a\\b"]


@pytest.mark.parametrize("name", [*BAD, *NOT_PLAIN], ids=repr)
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("folder", ["here", "memory://bucket/there"])
def test_names_that_are_none(name, nested, folder, tmp_path):
    folder = folder if "://" in folder else str(tmp_path)
    if nested and name in NOT_PLAIN[:-1]:
        assert paths.inside(folder, name, "list.json", nested=True).startswith(folder)
        return
    with pytest.raises(
        ValueError, match="'list.json' names .*, which leaves its directory or is no"
    ):
        paths.inside(folder, name, "list.json", nested)


def test_links_to_blobs_of_the_hub(tmp_path):
    """Snapshots in the Hugging Face cache hold links, in their folders too."""
    repository = tmp_path / "models--org--name"
    module = repository / "snapshots" / "abc" / "0_Transformer" / "onnx"
    module.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "blobs" / "123").write_text("weights")
    (tmp_path / "secret").write_text("secret")
    for folder in (module, module.parent, module.parent.parent):
        os.symlink(repository / "blobs" / "123", folder / "model.safetensors")
        os.symlink(tmp_path / "secret", folder / "out")
        assert paths.inside(str(folder), "model.safetensors", "x")
        with pytest.raises(ValueError, match="leaves its directory"):
            paths.inside(str(folder), "out", "x")


def test_names_that_are_good(tmp_path):
    for name in ("a.json", "a b", "..a", "日本語", "batch8-rate1e-05", "caf\udce9"):
        assert paths.inside(str(tmp_path), name, "x") == str(tmp_path / name)
    assert paths.inside("memory://b/c/", "a.json", "x") == "memory://b/c/a.json"


def test_links_that_lead_out(tmp_path):
    folder = tmp_path / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    os.symlink(tmp_path / "secret", folder / "link")
    os.symlink(folder / "link", folder / "again")
    os.symlink(tmp_path, folder / "above")
    for name in ("link", "again", "above", "above/secret"):
        # The folder's name alone does not make it a snapshot of the hub.
        with pytest.raises(ValueError, match="leaves its directory"):
            paths.inside(str(folder), name, "x", nested=True)
    (folder / "file").write_text("")
    os.symlink("file", folder / "within")
    assert paths.inside(str(folder), "within", "x")


# === Each kind of file ===

EVIL = ["/etc/passwd", "../outside", "a\0b", "x/../../outside", "..", "link"]
WITHIN = ["", "a/b", "NUL"]  # These names stay inside the folder, but are not plain names.


@pytest.fixture
def folder(tmp_path):
    """An empty folder with a link to a folder outside, which must stay unchanged."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    os.symlink(tmp_path / "outside", tmp_path / "folder" / "link")
    yield tmp_path / "folder"
    assert (tmp_path / "outside" / "file").read_text() == "mine"


def dump(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def refused(call, *arguments):
    # Names of shards have a fixed form, which is checked first.
    says = "which leaves its directory|is damaged .the shard .* is not in its place"
    with pytest.raises(ValueError, match=says) as raised:
        call(*arguments)
    assert "\n" not in str(raised.value)


def shards_of_vectors(folder, name):
    shard = {"name": name, "rows": 1}
    manifest = {"complete": True, "shards": [shard], "settings": {"format": "npy"}, "count": 1}
    dump(folder / "vectors.json", manifest)
    return list, read_vectors(str(folder))


def shards_of_predictions(folder, name):
    manifest = {"complete": True, "shards": [{"name": name, "rows": 1}], "settings": {}, "count": 1}
    dump(folder / "predictions.json", manifest)
    return list, read_predictions(str(folder))


def shards_of_records(folder, name):
    return shard_path, str(folder), {"name": name}


def shards_at_a_url(folder, name):
    return shard_path, "memory://records", {"name": name}


def shards_of_others(folder, name):
    dump(folder / "model.safetensors.index.json", {"weight_map": {"a": name}})
    return list, TensorFiles(str(folder))


def shards_of_keras(folder, name):
    dump(folder / "model.weights.json", {"weight_map": {"a": [name]}})
    return (OwnPreset(str(folder)).encoder_weights,)


def modules(folder, name):
    found = [{"idx": 0, "path": name, "type": "sentence_transformers.models.Transformer"}]
    dump(folder / "modules.json", found)
    return sentence_modules.folder_of, str(folder), found[0]


def submission(folder, name):
    values = tasks.get_task("rte").as_dict() | {"submission": name}
    return Task.from_dict, json.loads(json.dumps(values))


def files_of_a_task(folder, name):
    values = json.loads(json.dumps(tasks.get_task("rte").as_dict()))
    values["source"]["files"]["dev"] = ["RTE/dev.tsv", name]
    return Task.from_dict, values


KINDS = {
    shards_of_vectors: ("a/b", "NUL"),
    shards_of_predictions: ("a/b", "NUL"),
    shards_of_records: WITHIN,
    shards_at_a_url: WITHIN,
    shards_of_keras: WITHIN,
    shards_of_others: ("",),
    modules: (),
    submission: WITHIN,
    files_of_a_task: ("",),
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_kinds_of_files(kind, folder):
    for name in [*EVIL, *KINDS[kind]]:
        has_links = kind in (shards_of_keras, shards_of_records, shards_of_others, modules)
        if name == "link" and not has_links:
            # This kind creates the folder or adds an ending to the name, so the link is not used.
            continue
        if name == ".." and kind in (shards_of_vectors, shards_of_predictions):
            continue  # With an ending, ".." is a plain name.
        refused(*kind(folder, name))


def test_shards_that_are_links(folder):
    for ending in _ENDINGS["npy"]:
        path = folder / f"vectors-00000-00000{ending}"
        os.symlink(folder.parent / "outside" / "file", path)
        refused(*shards_of_vectors(folder, "vectors-00000-00000"))
        os.unlink(path)


@pytest.mark.parametrize("place", ["runs", "part"])
@pytest.mark.parametrize("name", [*EVIL, *WITHIN, "."])
def test_runs_of_a_search(place, name, folder):
    """`finetune` used to remove the folder named in a run's file."""
    name = str(folder.parent / "outside") if name == "/etc/passwd" else name
    where = folder if place == "runs" else folder / "parts" / "1-of-2"
    good = {"batch_size": 1, "learning_rate": 1.0, "epochs": 1, "seed": 0, "finished": 0.0}
    good |= {"run": "good", "scores": {"accuracy": 1.0}}
    dump(where / "settings.json", {})
    dump(where / "runs" / "good.json", good)
    dump(where / "runs" / "evil.json", {**good, "run": name, "scores": {"accuracy": 0.5}})
    os.symlink(folder.parent / "outside", where / "runs" / "link")
    task = tasks.get_task("rte")
    search = GridSearch(str(folder), {}, False, False, lambda: None, task, [], None, [], None, {})
    if place == "runs":
        refused(search.done)
        refused(write_results, search, [])
    else:
        refused(search.take_over, str(where))
    dump(where / "runs" / "evil.json", {"run": "evil"})
    with pytest.raises(ValueError, match="evil.json' is not a run: .*'batch_size'; remove this"):
        search.done() if place == "runs" else search.take_over(str(where))


@pytest.mark.parametrize("option", ["path", "view"])
def test_options_of_engines(option, tmp_path):
    pytest.importorskip("usearch")
    index = SearchIndex(None, engine="usearch")
    index.add(["a", "b"], vectors=np.eye(2, 8, dtype="float32"))
    index.save(str(tmp_path / "index"))
    assert not list(tmp_path.glob("victim*"))
    manifest = json.loads((tmp_path / "index" / "index.json").read_text())
    manifest["engine_options"] = {option: str(tmp_path / "victim")}
    (tmp_path / "index" / "index.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=f"usearch has no option '{option}'"):
        SearchIndex.load(str(tmp_path / "index"))
    assert not (tmp_path / "victim").exists()


def test_a_preset_that_says_where_its_task_writes(tiny_preset, tmp_path):
    """`kerasbert predict` used to write to a path from a preset's record."""
    preset = shutil.copytree(tiny_preset, tmp_path / "preset")
    task = tasks.get_task("rte").as_dict() | {"submission": str(tmp_path / "victim.tsv")}
    (preset / RECORD).write_text(json.dumps({"task": task}))
    (tmp_path / "texts.txt").write_text("a\n")
    with pytest.raises(
        ValueError, match=f"{RECORD}' names .*victim.tsv', which leaves its directory"
    ):
        kerasbert.predict(str(preset), str(tmp_path / "texts.txt"), output=str(tmp_path / "out"))
    assert not (tmp_path / "victim.tsv").exists()


def test_objects_of_a_store(tmp_path, monkeypatch):
    """The keys of an object store may be any strings."""

    evil = str(tmp_path / "evil.txt")

    class Store:
        def find(self, path, detail):
            return {f"{path}/{name}": {"type": "file"} for name in ("a.txt", evil)}

        def get_file(self, path, copy):
            pathlib.Path(copy).write_text(path)

    monkeypatch.setattr(storage, "_place", lambda url: (Store(), "bucket"))
    with pytest.raises(OSError, match="names '/.*evil.txt', which leaves its directory"):
        storage.get_folder("memory://bucket", str(tmp_path / "a" / "copy"))
    assert not (tmp_path / "evil.txt").exists()


def test_records_with_a_bad_manifest_are_refused_by_their_reader(folder):
    counts = ("documents", "sentences", "tokens", "examples", "not_next", "masked")
    counts = dict.fromkeys(counts, 1)
    described = {"vocabulary_size": 9, "vocabulary_sha256": "", "mask_token_id": 4}
    manifest = {
        "format": 1,
        "complete": True,
        "settings": {"sequence_length": 8, "mask_selection_length": 2, "objective": "x"},
        "tokenizer": {**described, "special_token_ids": []},
        "counts": counts,
        "shards": [{"name": "link", "bytes": 0, "text_sha256": "", **counts}],
    }
    dump(folder / "manifest.json", manifest)
    refused(data.read_examples, str(folder), 2)
