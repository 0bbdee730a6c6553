"""`upload_preset`: share a preset on a model hub, with a card that says what it is."""

import glob
import os
import re

import keras_hub

from kerasbert._errors import first_line
from kerasbert._json import to_json
from kerasbert.files import json_in, read_json, settle, write_text
from kerasbert.kinds import KINDS
from kerasbert.loading.names import builtin_presets

CARD_FIELDS = {
    "description": "a sentence or two: what it is for",
    "base": "the preset or handle that it was trained from",
    "data": "what it was trained on, in words",
    "recipe": "how it was trained, as Markdown",
    "datasets": "list of data sets on the hub, as 'glue'",
    "scores": "dict of metric to number",
    "scored_on": "the data of the scores",
    "test_scores": "dict of metric to number, on data that nothing was chosen by",
    "tested_on": "the data of the test scores",
    "license": "as 'apache-2.0'",
    "languages": "list of codes, as ['en', 'ko']",
    "limits": "what it is not for",
}
_HANDLES = {
    "hf": (r"([\w.-]+/)?[\w.-]+", "hf://org/name, or hf://name for your own account"),
    "kaggle": (r"[\w.-]+/[\w.-]+/[\w.-]+/[\w.-]+", "kaggle://user/model/keras/variation"),
}


def upload_preset(uri, preset_dir, card=None):
    """Upload a preset directory to a hub, through KerasHub's own call.

    A `README.md` is written into the directory: the model card, with what the preset says of
    itself and what `card` adds. One that is there stays where `card` is `None`.

    Args:
        uri: string. "hf://org/name" or "kaggle://user/model/keras/variation".
        preset_dir: string. A directory that `save_to_preset` wrote.
        card: dict of any of `description`, `base`, `data`, `recipe`, `datasets`, `scores`,
            `scored_on`, `test_scores`, `tested_on`, `license`, `languages` and `limits`. What it
            leaves out, the description of a built-in `base` fills in where it can.

    Returns:
        The page of the model.

    Raises:
        ValueError: for a handle or directory that is none, and for a hub that refuses.
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
    # KerasHub puts a card of its own over ours where the hub has none yet.
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
    """One sentence for what a hub or KerasHub raised, without a secret."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    text = _without_secrets(first_line(error))
    if status in (401, 403) or re.match("40[13] ", text) or "token" in type(error).__name__.lower():
        tokens = "HF_TOKEN" if uri.startswith("hf://") else "KAGGLE_USERNAME and KAGGLE_KEY"
        return (
            f"No right to write to '{uri}': log in to an account that has it, or set {tokens} to "
            "a token that may write."
        )
    return f"Cannot upload to '{uri}' ({text}); try again."


def _without_secrets(text):
    import huggingface_hub

    names = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "KAGGLE_KEY", "KAGGLE_API_TOKEN")
    secrets = [os.environ.get(name) for name in names] + [huggingface_hub.get_token()]
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    return text


# Checks


def _check_uri(uri):
    scheme, _, name = str(uri).partition("://")
    if scheme not in _HANDLES:
        forms = " or ".join(form.split(",")[0] for _, form in _HANDLES.values())
        raise ValueError(f"'{uri}' is no handle of a hub; use {forms}.")
    pattern, form = _HANDLES[scheme]
    if not re.fullmatch(pattern, name):
        raise ValueError(f"'{uri}' is no handle to upload to; use {form}.")
    return scheme, name


def _check_preset(directory):
    """Raise unless KerasHub takes the directory for a preset."""
    if not os.path.isdir(directory):
        raise ValueError(f"'{directory}' is not a directory; save a preset with save_to_preset.")
    settle(directory)
    name = str(json_in(directory, "config.json").get("registered_name"))
    weights = os.path.join(glob.escape(directory), "model*.weights.h5")
    if not name.startswith("kerasbert>") or not glob.glob(weights):
        raise ValueError(
            f"'{directory}' is no preset of ours: it needs the config.json and model.weights.h5 "
            "that save_to_preset of an encoder or task writes."
        )


def _check_card(card):
    if card is not None and not isinstance(card, dict):
        raise ValueError(f"card={card!r} has to be a dict of {', '.join(CARD_FIELDS)}.")
    for name, value in (card or {}).items():
        if name not in CARD_FIELDS:
            raise ValueError(f"A card has no field '{name}'; it has {', '.join(CARD_FIELDS)}.")
        if name in ("scores", "test_scores"):
            numbers = isinstance(value, dict) and all(
                isinstance(x, (int, float)) and not isinstance(x, bool) for x in value.values()
            )
            if not numbers:
                raise ValueError(f"{name}={value!r} of the card has to be a dict of numbers.")
        elif name in ("languages", "datasets"):
            if isinstance(value, str) or not all(isinstance(x, str) for x in value):
                raise ValueError(f"{name}={value!r} of the card has to be a list of strings.")
        elif not isinstance(value, str):
            raise ValueError(f"{name}={value!r} of the card has to be a string.")


# The card


def write_card(directory, handle, card, title=None):
    """Write `model_card` as the `README.md` of a preset's directory."""
    write_text(os.path.join(directory, "README.md"), model_card(directory, handle, card, title))


def model_card(preset_dir, handle, card=None, title=None):
    """The text of a preset's model card.

    Args:
        preset_dir: string. A directory that `save_to_preset` wrote.
        handle: string. Where it can be loaded from.
        card: dict. See `upload_preset`.
        title: string. By default the end of the handle.

    Returns:
        Markdown, with the hub's fields as YAML at the top.
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
    kind = next((kind for kind in KINDS.values() if kind.models == name), None)
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
    how = _how_to_load(name, handle, kind.usage if kind else "")
    parts += [_architecture(preset_dir, config, task), how, "## Training\n"]
    if base:
        parts.append(f"- From: {_link(base, base_handle)}")
    if described.get("paper"):
        parts.append(f"- Paper: {described['paper']}")
    parts += [
        f"- Data: {card.get('data') or ', '.join(card.get('datasets', [])) or _UNKNOWN}",
        f"- Licence: {card.get('license') or _UNKNOWN}\n",
    ]
    if card.get("recipe"):
        parts.append(card["recipe"] + "\n")
    parts.append("## Scores\n")
    for scores, scored_on in tables:
        parts += [
            f"On {scored_on or 'data that the author has not stated'}:\n",
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
    """The name on the Hugging Face hub, `None` for other handles."""
    return handle.removeprefix("hf://").partition("@")[0] if handle.startswith("hf://") else None


def _link(base, handle):
    repository = _repository(handle)
    return f"[{base}](https://huggingface.co/{repository})" if repository else base


def _architecture(directory, config, task):
    """What the preset is, from its own files."""
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
        lines.append(f"- Learning rate that is good to fine-tune it with: {rate:g}")
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
