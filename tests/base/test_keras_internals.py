"""`kerasbert.base.private_names`, compared with the installed packages and with the code."""

import ast
import functools
import importlib
import inspect
import pathlib
import pkgutil
import sys

import keras
import keras_hub
import pytest

import kerasbert
from kerasbert.base import keras_internals, private_names

BACKEND = keras.backend.backend()
ROOT = pathlib.Path(kerasbert.__file__).parent
HERE = pathlib.Path(keras_internals.__file__)
USED, GIVEN = private_names.USED, private_names.GIVEN


def is_private(name):
    """Return whether a name begins with one underscore."""
    return name.startswith("_") and not name.startswith("__") and name != "_"


# === All names exist ===


def look_up(path):
    """Return the object at a path of modules and names."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        return functools.reduce(getattr, parts[count:], found)
    raise ModuleNotFoundError(path)


def built(cls):
    """Build an optimizer that has every listed attribute."""
    arguments = {"amsgrad": True} if cls is keras.optimizers.AdamW else {}
    optimizer = cls(gradient_accumulation_steps=2, **arguments)
    optimizer.build([keras.Variable([0.0], name="weight")])
    return optimizer


def a_model():
    inputs = keras.Input((1,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile(loss="mse", metrics=["mae"])
    return model


def a_task():
    task = keras_hub.models.TextClassifier.__new__(keras_hub.models.TextClassifier)
    object.__setattr__(task, "_backbone", "the encoder")
    assert task.backbone == "the encoder"
    return task


def a_context():
    from tensorflow.python.eager import context

    return context.context()


OBJECTS = {
    "keras.Layer": lambda: keras.layers.Dense(1),
    "keras.Operation": lambda: keras.layers.Dense(1),
    "keras.Variable": lambda: keras.Variable([0.0]),
    "keras.Model": a_model,
    "keras.callbacks.Callback": keras.callbacks.Callback,
    "keras.metrics.MeanMetricWrapper": keras.metrics.MeanSquaredError,
    "keras.optimizers.Optimizer": lambda: built(keras.optimizers.Adam),
    "keras.optimizers.AdamW": lambda: built(keras.optimizers.AdamW),
    "keras.optimizers.Lamb": lambda: built(keras.optimizers.Lamb),
    "keras.optimizers.Muon": lambda: built(keras.optimizers.Muon),
    "keras_hub.models.Task": a_task,
    "tensorflow.python.eager.context.Context": a_context,
}


def arguments_of(function):
    """Return names of arguments and whether they are optional; defaults would print addresses."""
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default is p.empty) for p in parameters]


def check_xla():
    import tensorflow as tf

    function = tf.function(lambda x: x + 1, jit_compile=True)
    definition = function.get_concrete_function(tf.TensorSpec([])).function_def
    assert definition.attr[keras_internals.XLA_MUST_COMPILE].b


def each_name(rows):
    return [(row, name) for row in rows for name in row.names.split()]


CASES = each_name((*USED, *GIVEN))


def case(row, name):
    marks = [pytest.mark.backends(*row.backends)] if row.backends else []
    return pytest.param(row, name, marks=marks, id=f"{row.owner}.{name}")


@pytest.mark.parametrize("row, name", [case(*each) for each in CASES])
def test_the_installed_packages_have_it(row, name):
    owner = look_up(row.owner)
    if row.form == "attribute":
        assert hasattr(OBJECTS[row.owner](), name)
    elif row.form.startswith("("):
        if name == "_parallel_update_step":
            owner = keras_internals.class_made_by(owner)
        expected = eval(f"lambda {row.form[1:-1]}: None")
        assert arguments_of(getattr(owner, name)) == arguments_of(expected)
    elif row.form == "keyword":
        assert not getattr(owner(**{name: False}), name)
    elif row.form == "end of a path":
        paths = [variable.path for variable in OBJECTS[row.owner]().variables]
        assert sum(path.endswith(name) for path in paths) == 1
    elif row.form == "another class":
        made = keras_internals.class_made_by(owner)
        assert made is not owner and issubclass(made, owner)
    elif row.form == "string":
        assert isinstance(getattr(owner, name), str)
    elif row.form in ("variable of a module", "submodule"):
        assert hasattr(owner, name)
    elif row.form == "class":
        assert isinstance(getattr(owner, name), type)
    elif row.form == "function":
        assert callable(getattr(owner, name))
    elif row.form == "settings":
        with keras_internals.sizes_apart():
            assert not getattr(owner, name).use_duck_shape
    elif row.form == "module":
        module = getattr(owner, name)
        if name == "regex_split_ops":
            assert module.gen_regex_split_ops.regex_split_with_offsets
        else:
            ops = keras_internals.sentencepiece_ops()
            assert module.gen_sentencepiece_tokenizer is ops
            assert ops.sentencepiece_op and ops.sentencepiece_tokenize_with_offsets_op
    else:
        assert name == keras_internals.XLA_MUST_COMPILE
        check_xla()


def test_rows_say_why():
    for row in (*USED, *GIVEN):
        assert row.why.endswith(".") and row.issue and row.since.split()[1]
    assert len(set(CASES)) == len(CASES)


# === The code uses no other private names ===


# PyTorch sets the first on each `torch.autograd.Function`, scikit-learn the second on transformers.
SET_BY_METACLASSES = ("_backward_cls", "_sklearn_auto_wrap_output_keys")


def ours():
    """Return all classes of the package."""
    found = {}
    for module in pkgutil.walk_packages(kerasbert.__path__, "kerasbert."):
        if (
            module.name == "kerasbert.play.server"
        ):  # This module imports packages of the extra `play`, but nothing from Keras.
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and value.__module__ == module.name:
                found[value] = None
    return list(found)


@functools.cache
def classes_in(module):
    """Return the syntax trees of the classes in a module, by qualified name."""
    found = {}

    def visit(tree, path):
        for node in ast.iter_child_nodes(tree):
            inside = path
            if isinstance(node, ast.ClassDef):
                found.setdefault(path + node.name, node)
                inside = f"{path}{node.name}."
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                inside = f"{path}{node.name}.<locals>."
            visit(node, inside)

    try:
        visit(ast.parse(inspect.getsource(sys.modules[module])), "")
    except (OSError, TypeError, SyntaxError, KeyError):  # The class has no source code.
        pass
    return found


@functools.cache
def mentioned(cls):
    """Return the private names that a class defines, and those that its code sets on instances."""
    names = {name for name in vars(cls) if is_private(name) and name not in SET_BY_METACLASSES}
    tree = classes_in(cls.__module__).get(cls.__qualname__)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Attribute) and is_own_object(node.value):
            names.add(node.attr)
        # `object.__setattr__(self, "_name", ...)`, `getattr(self, "_name")`
        elif isinstance(node, ast.Call) and len(node.args) > 1 and is_own_object(node.args[0]):
            names.add(getattr(node.args[1], "value", None))
    return {name for name in names if isinstance(name, str) and is_private(name)}


def is_own_object(node):
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def is_ours(cls):
    return cls.__module__.split(".")[0] == "kerasbert"


def is_foreign(cls):
    return not is_ours(cls) and cls.__module__.split(".")[0] not in sys.stdlib_module_names


def shared(cls):
    """Return the private names that our class shares with its bases from other packages."""
    own = set().union(*(mentioned(base) for base in cls.__mro__ if is_ours(base)))
    theirs = set().union(*(mentioned(base) for base in cls.__mro__ if is_foreign(base)))
    return own & theirs


@pytest.mark.slow
def test_what_our_classes_give_to_keras():
    given = [row for row in GIVEN if not row.backends or BACKEND in row.backends]
    listed = {name for row, name in each_name(given)}
    found = set().union(*map(shared, ours()))
    assert found == listed


@functools.cache
def parsed():
    """Return the syntax trees of the package's files except the wrappers and the list, by path."""
    paths = sorted({*ROOT.rglob("*.py")} - {HERE, pathlib.Path(private_names.__file__)})
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in paths
    }


def defined(trees):
    """Return the private names that the package's classes define, also on their instances."""
    names = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.ClassDef):
            for part in node.body:
                names.add(getattr(part, "name", None))
                names.update(x.id for x in getattr(part, "targets", ()) if isinstance(x, ast.Name))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if is_own_object(node.value):
                names.add(node.attr)
        elif isinstance(node, ast.Call) and len(node.args) > 1:
            if ast.unparse(node.func) in ("object.__setattr__", "self.__dict__.setdefault"):
                names.update(getattr(x, "value", None) for x in node.args[:2])
    return names


def imports(node):
    """Return the parts of the names in an `import` statement."""
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{name.name}" for name in node.names]
    return [name.name for name in node.names]


def is_private_module(path):
    first, *rest = path.split(".")
    if first in sys.stdlib_module_names or first == "kerasbert":
        return False
    return any(is_private(part) or part in ("src", "python") for part in rest)


NAMED_TUPLE = ("_asdict", "_fields", "_make", "_replace")  # Public in spite of the underscore.


def uses(tree, known):
    """Return `(line, name)` of each foreign private name that is not in `known`."""
    modules = set(sys.stdlib_module_names)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "kerasbert":
            modules.update(name.asname or name.name for name in node.names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if is_private(node.attr) and node.attr not in {*known, *NAMED_TUPLE}:
                if ast.unparse(node.value) not in modules:
                    yield node.lineno, node.attr
            # Such code creates an object without calling its class, or changes the object's class.
            if node.attr == "__class__" or node.attr == "__new__":
                if ast.unparse(node.value) not in ("object", "super()"):
                    yield node.lineno, node.attr
        elif isinstance(node, ast.keyword):
            if is_private(node.arg or "") and node.arg not in known:
                yield node.value.lineno, node.arg
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for path in filter(is_private_module, imports(node)):
                yield node.lineno, path
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if is_private_module(node.value.partition(" ")[0]):
                yield node.lineno, node.value


@pytest.mark.slow
def test_no_other_file_uses_one():
    files = parsed()
    known = defined(files.values()) | {name for row, name in each_name(GIVEN)}
    found = [f"{path}:{line} {name}" for path in files for line, name in uses(files[path], known)]
    assert not found, "\n".join(found)


def test_no_other_file_uses_one_of_the_list_by_the_name_of_our_own():
    """If both our code and Keras define a name, only its use on `self` is a use of ours."""
    # Names of submodules are common words.
    listed = {name for row, name in each_name(USED) if row.form != "submodule"}
    found = []
    for path, tree in parsed().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in listed - {"_model", "__new__"}:
                found.append(f"{path}:{node.lineno} {node.attr}")
            elif isinstance(node, ast.Constant) and node.value in listed:
                found.append(f"{path}:{node.lineno} {node.value!r}")
    assert not found, "\n".join(found)


def test_the_list_has_what_its_functions_use():
    tree = ast.parse(HERE.read_text(encoding="utf-8"))
    found = {name.rpartition(".")[2] for _, name in uses(tree, ())}
    constants = (n.value.value for n in tree.body if isinstance(n, ast.Assign))
    assert found | set(constants) == {name for row, name in each_name(USED)}
