"""Files of all models of sentence-transformers: modules and prompts."""

import os
import warnings

from kerasbert.base.errors import check_fields
from kerasbert.base.files import json_in, read_json, write_json
from kerasbert.base.paths import inside

CONFIG = "config_sentence_transformers.json"
# Names of the role of searched texts in these files; the first is ours.
_TEXT_ROLES = ("text", "document", "passage", "corpus")
# `activation_fn` is applied to logits.
_CONFIG_FIELDS = {
    "prompts": "texts?",
    "default_prompt_name": "name?",
    "activation_fn": "name?",
    "model_type": "name?",
    "truncate_dim": "count?",
}
# File with the settings of the encoder's module, by model type.
TRANSFORMER_SETTINGS = [
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]


def has_modules(directory):
    """Return whether a directory has a list of modules."""
    return os.path.exists(os.path.join(directory, "modules.json"))


def modules_of(directory):
    """Return the list of modules, dicts with `path` and `type`, sorted by `idx`."""
    path = os.path.join(directory, "modules.json")
    modules = read_json(path, list)
    try:
        modules = sorted(modules, key=lambda module: module["idx"])
        if not all(isinstance(module[key], str) for module in modules for key in ("path", "type")):
            raise TypeError("a path or type is not a string")
        if not modules:
            raise TypeError("it is empty")
        return modules
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"'{path}' is not a list of modules ({error!r}); download it again."
        ) from error


def class_name(module):
    """Return a module's class name without its path."""
    return module["type"].rpartition(".")[2]


def folder_of(directory, module):
    """Return a module's folder; the first may use the model's."""
    source = os.path.join(directory, "modules.json")
    path = module["path"]
    return inside(directory, path, source, nested=True) if path else directory


def write_module_files(embedder, directory, kinds, package, types=None):
    """Write `modules.json` and the modules.

    `kinds` is a dict of class to config or `None`.
    """
    types = {kind: f"{package}.{kind}" for kind in kinds} | (types or {})
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": "" if i == 0 else f"{i}_{kind}",
            "type": types[kind],
        }
        for i, kind in enumerate(kinds)
    ]
    for module, config in zip(modules[1:], [*kinds.values()][1:], strict=True):
        folder = os.path.join(directory, module["path"])
        os.mkdir(folder)
        if config is not None:
            write_json(os.path.join(folder, "config.json"), config)
    most = embedder.backbone.max_sequence_length
    length = getattr(embedder.preprocessor, "sequence_length", most)
    # Stays false, because the tokenizer itself lowercases texts if needed.
    settings = {"max_seq_length": length, "do_lower_case": False}
    write_json(os.path.join(directory, "modules.json"), modules)
    write_json(os.path.join(directory, TRANSFORMER_SETTINGS[0]), settings)


def read_config(directory):
    """Return the settings of the model, such as its prompts; empty if it has none."""
    config = json_in(directory, CONFIG)
    check_fields(config, _CONFIG_FIELDS, os.path.join(directory, CONFIG))
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise ValueError(
            f"'{os.path.join(directory, CONFIG)}' has default_prompt_name={default!r}, which is "
            f"not one of its prompts ({', '.join(prompts) or 'it has none'}); set it to one of "
            "them or to null."
        )
    return config


def warn_of_prompt(directory):
    """Warn that kerasbert does not put the model's default prompt before texts."""
    config = read_config(directory)
    prompt = (config.get("prompts") or {}).get(config.get("default_prompt_name"))
    if prompt:
        warnings.warn(
            f"'{directory}' puts the prompt {prompt!r} before each text, but kerasbert does not; "
            "add it to your texts.",
            stacklevel=6,
        )


def read_prompts(directory, modules):
    """Return the preprocessor's prompts by role and the default role."""
    config = read_config(directory)
    prompts = {role: prompt for role, prompt in (config.get("prompts") or {}).items() if prompt}
    if not prompts:
        return {}
    pooling = [module for module in modules if class_name(module) == "Pooling"]
    pooling = pooling and json_in(folder_of(directory, pooling[0]), "config.json")
    if pooling and not pooling.get("include_prompt", True):
        warnings.warn(
            f"'{directory}' has prompts that are left out of pooling (include_prompt=false), which "
            "kerasbert does not support; it is loaded without them.",
            stacklevel=6,
        )
        return {}
    role = config.get("default_prompt_name")
    theirs = next((name for name in _TEXT_ROLES if name in prompts), None)
    if theirs:
        prompts = {"text" if name == theirs else name: x for name, x in prompts.items()}
        role = "text" if role == theirs else role
    return {"prompts": prompts, "role": role if role in prompts else None}


def prompts_config(preprocessor):
    """Return a preprocessor's prompts as settings of the model."""
    prompts, role = getattr(preprocessor, "prompts", {}), getattr(preprocessor, "role", None)
    names = {"text": _TEXT_ROLES[1]}
    return {
        "prompts": {names.get(name, name): prompt for name, prompt in prompts.items()},
        "default_prompt_name": names.get(role, role) if prompts else None,
    }
