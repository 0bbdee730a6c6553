"""`upload_preset`: share a preset on a model hub, with a model card."""

from __future__ import annotations

import glob
import os
import re
from typing import TYPE_CHECKING

import keras_hub

from kerasbert.base.errors import first_line
from kerasbert.base.files import json_in, read_json, settle, write_text
from kerasbert.base.strict_json import to_json
from kerasbert.checkpoints.names import builtin_presets
from kerasbert.kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kerasbert.base.aliases import AnyPath

CARD_FIELDS = {
    "description": "one or two sentences on its purpose",
    "base": "preset or handle that it was trained from",
    "data": "training data, in words",
    "recipe": "how it was trained, as Markdown",
    "datasets": "list of data sets on the hub, such as 'glue'",
    "scores": "dict of metric to number",
    "scored_on": "evaluation data of the scores",
    "test_scores": "dict of metric to number, on data not used for any choice",
    "tested_on": "evaluation data of the test scores",
    "license": "such as 'apache-2.0'",
    "languages": "list of language codes, such as ['en', 'ko']",
    "limits": "uses that it is not suited for",
}
_HANDLES = {
    "hf": (r"([\w.-]+/)?[\w.-]+", "hf://org/name, or hf://name for your own account"),
    "kaggle": (r"[\w.-]+/[\w.-]+/[\w.-]+/[\w.-]+", "kaggle://user/model/keras/variation"),
}


def upload_preset(uri: str, preset_dir: AnyPath, card: Mapping[str, Any] | None = None) -> str:
    """Upload a preset directory to a hub with KerasHub's `upload_preset`.

    The model card `README.md` is made from the preset's files and `card`; without `card`, an
    existing one is kept.

    Args:
        uri: "hf://org/name" or "kaggle://user/model/keras/variation".
        preset_dir: a directory written by `save_to_preset`.
        card: dict of any of `description`, `base`, `data`, `recipe`, `datasets`, `scores`,
            `scored_on`, `test_scores`, `tested_on`, `license`, `languages` and `limits`. A built-in
            `base` fills in missing fields.

    Returns:
        The URL of the model's page.

    Raises:
        ValueError: for an invalid handle or directory, or if the hub refuses.
    """
    scheme, name = _check_uri(uri)
    preset_dir = os.path.expanduser(os.fspath(preset_dir))
    _check_preset(preset_dir)
    _check_card(card)
    if not os.path.exists(os.path.join(preset_dir, "README.md")):
        card = card or {}
    try:
        if scheme == "hf":
            return _huggingface(name, preset_dir, card)
        return _kaggle(uri, name, preset_dir, card)
    except Exception as error:
        raise ValueError(_reason(error, uri)) from None


def _huggingface(name, preset_dir, card):
    import huggingface_hub

    repository = huggingface_hub.create_repo(name, exist_ok=True)
    if card is not None:
        write_card(preset_dir, f"hf://{repository.repo_id}", card)
    # First, because KerasHub adds its own card to a repository without one.
    huggingface_hub.upload_file(
        path_or_fileobj=os.path.join(preset_dir, "README.md"),
        path_in_repo="README.md",
        repo_id=repository.repo_id,
        commit_message="Model card",
    )
    keras_hub.upload_preset(f"hf://{repository.repo_id}", preset_dir)
    return str(repository)


def _kaggle(uri, name, preset_dir, card):
    if card is not None:
        write_card(preset_dir, uri, card)
    keras_hub.upload_preset(uri, preset_dir)
    return f"https://www.kaggle.com/models/{name}"


def _reason(error, uri):
    """Summarize an error of a hub or KerasHub in one sentence, without secrets."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    text = _without_secrets(first_line(error))
    if status in (401, 403) or re.match("40[13] ", text) or "token" in type(error).__name__.lower():
        tokens = "HF_TOKEN" if uri.startswith("hf://") else "KAGGLE_USERNAME and KAGGLE_KEY"
        return (
            f"No permission to write to '{uri}': log in to an account that has it, or set {tokens} "
            "to a token with write access."
        )
    return f"Cannot upload to '{uri}' ({text}); try again."


def _without_secrets(text):
    import huggingface_hub

    names = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "KAGGLE_KEY", "KAGGLE_API_TOKEN")
    secrets = [os.environ.get(name) for name in names] + [huggingface_hub.get_token()]
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    return text


# === Checks ===


def _check_uri(uri):
    scheme, _, name = str(uri).partition("://")
    if scheme not in _HANDLES:
        forms = " or ".join(form.split(",")[0] for _, form in _HANDLES.values())
        raise ValueError(f"'{uri}' is not a handle of a hub; use {forms}.")
    pattern, form = _HANDLES[scheme]
    if not re.fullmatch(pattern, name):
        raise ValueError(f"'{uri}' is not a handle to upload to; use {form}.")
    return scheme, name


def _check_preset(directory):
    """Raise unless the directory is a preset that KerasHub can upload."""
    if not os.path.isdir(directory):
        raise ValueError(f"'{directory}' is not a directory; save a preset with save_to_preset.")
    settle(directory)
    name = str(json_in(directory, "config.json").get("registered_name"))
    weights = os.path.join(glob.escape(directory), "model*.weights.h5")
    if not name.startswith("kerasbert>") or not glob.glob(weights):
        raise ValueError(
            f"'{directory}' is not a kerasbert preset: it needs the config.json and "
            "model.weights.h5 that save_to_preset writes for an encoder or task."
        )


def _check_card(card):
    if card is not None and not isinstance(card, dict):
        raise ValueError(f"card={card!r} must be a dict of {', '.join(CARD_FIELDS)}.")
    for name, value in (card or {}).items():
        if name not in CARD_FIELDS:
            raise ValueError(f"Unknown field '{name}' in card; use {', '.join(CARD_FIELDS)}.")
        if name in ("scores", "test_scores"):
            numbers = isinstance(value, dict) and all(
                isinstance(x, (int, float)) and not isinstance(x, bool) for x in value.values()
            )
            if not numbers:
                raise ValueError(f"{name}={value!r} in card must be a dict of numbers.")
        elif name in ("languages", "datasets"):
            if isinstance(value, str) or not all(isinstance(x, str) for x in value):
                raise ValueError(f"{name}={value!r} in card must be a list of strings.")
        elif not isinstance(value, str):
            raise ValueError(f"{name}={value!r} in card must be a string.")


# === Model card ===


def write_card(directory, handle, card, title=None):
    """Write `model_card` as the `README.md` of a preset directory."""
    write_text(os.path.join(directory, "README.md"), model_card(directory, handle, card, title))


def model_card(preset_dir, handle, card=None, title=None):
    """Return the text of a preset's model card.

    Args:
        preset_dir: a directory written by `save_to_preset`.
        handle: the handle that loads it.
        card: dict. See `upload_preset`.
        title: string. Defaults to the last part of the handle.

    Returns:
        Markdown, with the hub's metadata as YAML at the top.
    """
    from huggingface_hub import EvalResult, ModelCardData

    _check_card(card)
    config = read_json(os.path.join(preset_dir, "config.json"))
    task = json_in(preset_dir, "task.json")
    base = (card or {}).get("base")
    described = builtin_presets().get(base, {})
    card = {
        **{name: described[name] for name in ("license", "languages") if described.get(name)},
        **(card or {}),
    }
    name = (task or config)["class_name"]
    kind = next((kind for kind in KINDS.values() if kind.model == name), None)
    pipeline = kind.pipeline if kind else "feature-extraction" if not task else ""
    title = title or handle.rpartition("/")[2]
    base_handle = described.get("handle") or base or ""
    tables = [
        (card.get(scores), card.get(data))
        for scores, data in (("scores", "scored_on"), ("test_scores", "tested_on"))
        if card.get(scores)
    ]
    results = [
        EvalResult(
            task_type=pipeline or "other",
            dataset_type=(card.get("datasets") or ["other"])[0],
            dataset_name=scored_on or (card.get("datasets") or ["not stated"])[0],
            metric_type=metric.lower().replace(" ", "_"),
            metric_name=metric,
            metric_value=value,
        )
        for scores, scored_on in tables
        for metric, value in scores.items()
    ]
    data = ModelCardData(
        language=card.get("languages"),
        license=card["license"].lower().replace(" ", "-") if card.get("license") else None,
        library_name="kerasbert",
        pipeline_tag=pipeline or None,
        base_model=_repository(base_handle),
        datasets=card.get("datasets"),
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        tags=["kerasbert", "keras", config["config"].get("family", "bert")],
        model_name=title if results else None,
        eval_results=results or None,
    )
    parts = [f"---\n{data.to_yaml()}\n---\n", f"# {title}\n"]
    if card.get("description"):
        parts.append(card["description"] + "\n")
    how = _how_to_load(name, handle, f"{kind.method}({kind.usage})" if kind and kind.method else "")
    parts += [_architecture(preset_dir, config, task), how, "## Training\n"]
    if base:
        parts.append(f"- From: {_link(base, base_handle)}")
    if described.get("paper"):
        parts.append(f"- Paper: {described['paper']}")
    parts += [
        f"- Data: {card.get('data') or ', '.join(card.get('datasets', [])) or _UNKNOWN}",
        f"- License: {card.get('license') or _UNKNOWN}\n",
    ]
    if card.get("recipe"):
        parts.append(card["recipe"] + "\n")
    parts.append("## Scores\n")
    for scores, scored_on in tables:
        parts += [
            f"On {scored_on or 'data not stated by the author'}:\n",
            "| metric | value |\n|---|---|",
            *(f"| {metric} | {value} |" for metric, value in scores.items()),
            "",
        ]
    if not tables:
        parts.append(f"{_UNKNOWN.capitalize()}.\n")
    if card.get("limits"):
        parts.append(f"## Limits\n\n{card['limits']}\n")
    return "\n".join(parts)


_UNKNOWN = "not stated by the author"


def _repository(handle):
    """Return the repository name in a Hugging Face handle, or `None` for other handles."""
    return handle.removeprefix("hf://").partition("@")[0] if handle.startswith("hf://") else None


def _link(base, handle):
    repository = _repository(handle)
    return f"[{base}](https://huggingface.co/{repository})" if repository else base


def _architecture(directory, config, task):
    """Describe the preset from its own files."""
    settings = config["config"]
    parameters = json_in(directory, "metadata.json").get("parameter_count")
    lines = [
        f"- Class: `kerasbert.models.{(task or config)['class_name']}`, family "
        f"{settings.get('family', 'bert')}",
        f"- Encoder: {settings['num_layers']} layers, {settings['hidden_dim']} wide, "
        f"{settings['num_heads']} heads, {settings['max_sequence_length']} positions"
        + (f", {parameters:,} parameters" if parameters else ""),
    ]
    rate = settings.get("finetuning_learning_rate")
    if rate is not None:
        lines.append(f"- Recommended learning rate for fine-tuning: {rate:g}")
    tokenizer = json_in(directory, "tokenizer.json")
    if tokenizer:
        case = {True: ", lower case", False: ", cased"}.get(tokenizer["config"].get("lowercase"))
        lines.append(
            f"- Tokenizer: `{tokenizer['class_name']}`{case or ''}, {settings['vocabulary_size']:,}"
            " tokens"
        )
    labels = task.get("config", {}).get("labels")
    if labels:
        shown = ", ".join(to_json(label, ensure_ascii=False) for label in labels[:20])
        lines.append(f"- Classes: {shown}" + (" and more" if len(labels) > 20 else ""))
    return "\n".join(lines) + "\n"


def _how_to_load(name, handle, method):
    packages, call = "import kerasbert", f"model.{method}"
    if not method:
        packages += "\nimport numpy as np"
        call = 'model({"token_ids": np.array([[1, 2, 3]])})'
    return (
        f"## How to use\n\n```python\n{packages}\n\n"
        f'model = kerasbert.models.{name}.from_preset("{handle}")\n{call}\n```\n'
    )
