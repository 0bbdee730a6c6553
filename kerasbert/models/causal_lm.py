"""Language models: which token comes next.

N texts, B batch, T tokens, V tokens of the vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING

import keras
import keras_hub
import numpy as np
from keras import ops

from kerasbert import backend
from kerasbert._errors import check_whole
from kerasbert._process import check_process
from kerasbert.data.batching import sorted_batches
from kerasbert.families import head_settings
from kerasbert.losses import Perplexity, TokenAccuracy, TokenCrossEntropy
from kerasbert.models.backbone import BertBackbone
from kerasbert.models.head_metrics import TOKEN_CLASSES
from kerasbert.models.masked_lm import MaskedHeadSettings, vocabulary_head
from kerasbert.models.writing_task import WritingTask, begun, until_stop
from kerasbert.parts import own_preprocessor
from kerasbert.preprocessors.causal_lm import BertCausalLMPreprocessor

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kerasbert._typing import Tensor, Texts

# The most numbers in the logits of a batch that `score` runs: 256 MB.
MOST_LOGITS = 2**26


@keras.saving.register_keras_serializable(package="kerasbert")
class BertCausalLM(WritingTask):
    """Predicts the next token, as GPT is pre-trained, and writes on.

    The output is logits (B, T, V): of the token after each. `fit` and `evaluate` take raw strings;
    of ready arrays labels are the next tokens (B, T), and sample weights (B, T) 0 at padding.
    `generate`, and samplers by name or object in `compile(sampler=...)`, are as KerasHub's.

    Args:
        backbone: a `BertBackbone` that looks left to right, as those of the families "gpt2", "gpt"
            and "modernbert_decoder", or with `is_causal=True`.
        preprocessor: a `BertCausalLMPreprocessor`, or `None` for ready arrays.
        head_activation: string. A dense layer with this activation, and a norm, before the
            projection to the vocabulary; `None` for neither.
        head_bias: bool. The bias of that layer.
        head_norm_epsilon: float. Of the norm after it.
        output_bias: bool. A bias of each token's logit.
        tie_weights: bool. `False` projects to the vocabulary by weights of the head's own in place
            of the token embedding's.

    The last five follow the encoder's family where they are not given.

    Example:

    >>> backbone = BertBackbone.from_family(
    ...     "gpt2", vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=8,
    ...     intermediate_dim=16,
    ... )
    >>> model = BertCausalLM(backbone)
    >>> model.compile(sampler="greedy")
    >>> prompts = {"token_ids": np.array([[7, 3, 0, 0, 0]]), "padding_mask": [[1, 1, 0, 0, 0]]}
    >>> model.generate(prompts, stop_token_ids=None)["token_ids"].shape
    (1, 5)

    Source: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training", and
    2019, "Language Models are Unsupervised Multitask Learners".
    """

    backbone_cls = BertBackbone
    preprocessor_cls = BertCausalLMPreprocessor
    kind = "causal_lm"

    def __init__(
        self,
        backbone: BertBackbone,
        preprocessor: BertCausalLMPreprocessor | None = None,
        head_activation: str | None = None,
        head_bias: bool | None = None,
        head_norm_epsilon: float | None = None,
        output_bias: bool | None = None,
        tie_weights: bool | None = None,
        **kwargs: Any,
    ) -> None:
        self._check_encoder(backbone, has_all=True)
        if not backbone.is_causal:
            raise ValueError(
                "The encoder looks to both sides, and a language model that predicts the next "
                "token must not see it; load one of the family 'gpt2' or 'gpt', or make one with "
                "is_causal=True."
            )
        given = MaskedHeadSettings(
            head_activation, head_bias, head_norm_epsilon, output_bias, tie_weights
        )
        defaults = {
            "head_activation": None,
            "head_bias": True,
            "head_norm_epsilon": backbone.layer_norm_epsilon,
            "output_bias": False,
            "tie_weights": True,
            **head_settings(backbone.family, self.kind),
        }
        self._set_given(vars(given), defaults)
        if backbone.embedding_dim is not None and self.head_activation is None:
            raise ValueError(
                f"The encoder's embedding_dim={backbone.embedding_dim} is another width than its "
                "outputs', which are to be projected to the tokens; make one with "
                "embedding_dim=None, or pass a head_activation."
            )
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = own_preprocessor(backbone, preprocessor, self.preprocessor_cls)
        self.lm_head = vocabulary_head(self, "lm_head")

        # === Functional model ===
        inputs = backbone.input
        outputs = self.lm_head(backbone(inputs)["sequence_output"])  # (B, T, V)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    @classmethod
    def needs_pooler(cls, settings: Any) -> bool:
        return False

    @classmethod
    def output_weight(cls, settings: Any) -> str:
        if settings.get("output_bias", False):
            return "lm_head/bias"
        return None if settings.get("tie_weights", True) else "lm_head/decoder/kernel"

    def _needs_labels(self, is_raw):
        return not is_raw

    def default_loss(self) -> Any:
        """Cross-entropy, a mean over the tokens."""
        return TokenCrossEntropy()

    def default_metrics(self) -> Any:
        """Accuracy and perplexity over the tokens."""
        return [TokenAccuracy(), Perplexity()]

    def metric_forms(self) -> Any:
        return TOKEN_CLASSES, self.backbone.vocabulary_size

    # === Writing on ===

    def call_with_cache(
        self, token_ids: Tensor, cache: Tensor, cache_update_index: Any
    ) -> tuple[Any, ...]:
        """Logits of tokens whose predecessors are in a cache; see `BertBackbone.call_with_cache`.

        Returns:
            `(logits, outputs, cache)`: (B, S, V), and what the encoder gives.
        """
        outputs, cache = self.backbone.call_with_cache(token_ids, cache, cache_update_index)
        return self.lm_head(outputs), outputs, cache

    def _fresh_cache(self, prompt_ids, length):
        """The cache of `length` tokens, with keys and values of those of the prompts.

        They run without logits, and at their own length.
        """
        backbone = self.backbone
        batch, tokens = ops.shape(prompt_ids)
        width = backbone.hidden_dim // backbone.num_heads
        empty = ops.zeros((batch, 2, tokens, backbone.num_heads, width), dtype=self.compute_dtype)
        cache = tuple(ops.copy(empty) for _ in backbone.transformer_layers)
        _, cache = backbone.call_with_cache(prompt_ids, cache, 0)
        rest = [[0, 0], [0, 0], [0, length - tokens], [0, 0], [0, 0]]
        return tuple(ops.pad(one, rest) for one in cache)

    # Compiles `generate_step` as each backend does. Not by inheritance: Keras makes a functional
    # model of a class by changing its bases, and fails where two of them have one base.
    make_generate_function = keras_hub.models.CausalLM.make_generate_function

    def generate_step(
        self, inputs: Mapping[str, Any], stop_token_ids: Any = None
    ) -> dict[str, Any]:
        """Write on in a batch, compiled where the backend does so.

        Args:
            inputs: dict of `token_ids` (B, T) with room behind the prompts, `padding_mask` (B, T),
                true at these, and perhaps `prompt_ids` (B, S), all their tokens in fewer columns.
            stop_token_ids: tuple of ints, or `None`.

        Returns:
            A dict of `token_ids` and of `padding_mask`, which ends with a row's stop token.
        """
        given = ops.cast(inputs["token_ids"], "int32")
        is_prompt = ops.cast(inputs["padding_mask"], "bool")
        token_ids = begun(given, is_prompt, stop_token_ids)
        cache = self._fresh_cache(inputs.get("prompt_ids", token_ids), token_ids.shape[1])
        index = ops.min(ops.sum(ops.cast(is_prompt, "int32"), axis=-1))

        def step(inputs):
            cache = tuple(inputs[f"cache_{i}"] for i in range(len(inputs) - 2))
            return self.call_with_cache(inputs["token_ids"], cache, inputs["index"])

        def following(prompt, cache, index):
            last = ops.slice(prompt, (0, index - 1), (ops.shape(prompt)[0], 1))
            inputs = {"token_ids": last, "index": index - 1}
            inputs |= {f"cache_{i}": one for i, one in enumerate(cache)}
            logits, outputs, cache = backend.run_in_loop(self, step, inputs)
            return logits[:, 0], outputs[:, 0], cache

        token_ids = self.sampler(
            next=following,
            prompt=token_ids,
            cache=cache,
            index=index,
            mask=is_prompt,
            stop_token_ids=stop_token_ids or None,
            model=self,
        )
        is_text = until_stop(token_ids, is_prompt, stop_token_ids)
        return {"token_ids": ops.where(is_text, token_ids, given), "padding_mask": is_text}

    def generate(
        self,
        inputs: Texts,
        max_length: int | None = None,
        stop_token_ids: Any = "auto",
        strip_prompt: bool = False,
        batch_size: int = 32,
    ) -> Any:
        """Write on from prompts, by the sampler of `compile`.

        Args:
            inputs: a string, a list of N strings, or a dict of arrays as of `generate_step`.
            max_length: int. The most tokens of a text with its prompt; by default the
                preprocessor's `sequence_length`. Arrays have room for as many as there are columns.
            stop_token_ids: ints that end a text; "auto" is the tokenizer's end token, and `None`
                ends none before `max_length`.
            strip_prompt: bool. Give what was written alone, without the prompt.
            batch_size: int. How many texts are written at a time.

        Returns:
            A string, a list of N strings, or a dict of `token_ids` and `padding_mask`.

        Raises:
            ValueError: for a prompt without a token, or that leaves no room.
        """
        check_process()
        check_whole("batch_size", batch_size)
        stops = self._stops(stop_token_ids)
        if isinstance(inputs, dict):
            return self._write(self._checked_arrays(inputs), stops, strip_prompt)
        prompts, single = self._as_lists(inputs, "generate()")
        texts = []
        for first in range(0, len(prompts), batch_size):
            batch = self.preprocessor.generate_preprocess(
                prompts[first : first + batch_size], max_length, first
            )
            written = self._write(batch, stops, strip_prompt)
            texts += self.preprocessor.generate_postprocess(written)
        return texts[0] if single else texts

    def _write(self, inputs, stops, strip_prompt):
        self._check_finite()
        outputs = self.make_generate_function()(inputs, stop_token_ids=stops)
        outputs = {name: np.asarray(ops.convert_to_numpy(x)) for name, x in outputs.items()}
        if not strip_prompt:
            return outputs
        is_prompt = np.asarray(ops.convert_to_numpy(inputs["padding_mask"])).astype(bool)
        counts = is_prompt.sum(axis=1, keepdims=True)
        size = is_prompt.shape[1]
        places = np.arange(size) + counts  # Of what was written, moved to the front.
        ids, mask = (
            np.take_along_axis(outputs[name], np.minimum(places, size - 1), axis=1)
            for name in ("token_ids", "padding_mask")
        )
        return {"token_ids": ids, "padding_mask": mask.astype(bool) & (places < size)}

    def _checked_arrays(self, inputs):
        """Check ready arrays for `generate`, and give their types to them."""
        inputs = self._named_arrays(inputs, ("token_ids", "padding_mask"))
        return {**inputs, **self._checked_rows(inputs)}

    # === What texts are worth ===

    def score(self, texts: Texts, stride: int | None = None, batch_size: int = 32) -> Any:
        """How likely each token of a text is after those before it.

        The first token has none before it, and is left out; with `add_start_token=True` of the
        preprocessor it follows the start token. A text longer than `sequence_length` is read in
        windows.

        Args:
            texts: a string or a list of N strings.
            stride: int. By how many tokens a window begins later than the one before it: a token
                then sees `sequence_length - stride` tokens at least. `None` is half a window.
            batch_size: int.

        Returns:
            For a text a list of dicts, one a token: `token`, `token_id`, `start` and `end` in
            characters, and `score`, the logarithm of its probability. For a list of texts, a list
            of these.
        """
        texts, single = self._as_lists(texts, "score()")
        texts = [text.decode() if isinstance(text, bytes) else str(text) for text in texts]
        rows, windows = self.preprocessor.windows(texts, stride)
        found = [np.zeros(len(ids), "float32") for ids, _, _ in rows]
        for batch in self._score_batches(windows, batch_size):
            for (row, begin, end, first), scores in zip(batch, self._log_odds(rows, batch)):
                found[row][first:end] = scores[first - begin : end - begin]
        tokenizer = self.preprocessor.tokenizer
        scored = []
        for (ids, starts, ends), scores in zip(rows, found, strict=True):
            columns = zip(ids, starts, ends, scores.tolist(), strict=True)
            scored.append(
                [
                    {
                        "token": tokenizer.id_to_token(id),
                        "token_id": id,
                        "start": start,
                        "end": end,
                        "score": score,
                    }
                    for id, start, end, score in list(columns)[1:]
                ]
            )
        return scored[0] if single else scored

    def perplexity(self, texts: Texts, stride: int | None = None, batch_size: int = 32) -> Any:
        """e to the mean of the negative scores of a text's tokens; see `score`.

        Returns:
            A float for a text, floats (N,) for a list.

        Raises:
            ValueError: for a text without a token that has another one before it.
        """
        texts, single = self._as_lists(texts, "perplexity()")
        rows = self.score(list(texts), stride, batch_size)
        for position, row in enumerate(rows):
            if not row:
                raise ValueError(
                    f"The text at position {position} has no token that follows another one; "
                    "leave it out, or set the preprocessor's add_start_token=True."
                )
        found = [math.exp(-np.mean([one["score"] for one in row])) for row in rows]
        return found[0] if single else np.array(found)

    def _score_batches(self, windows, batch_size):
        """Windows of like length in batches, whose logits fit `MOST_LOGITS`."""
        check_whole("batch_size", batch_size)
        lengths = [end - begin for _, begin, end, _ in windows]
        for batch in sorted_batches(lengths, batch_size) if windows else ():
            longest = self.preprocessor.bucket(max(lengths[i] for i in batch))
            size = max(1, MOST_LOGITS // (longest * self.backbone.vocabulary_size))
            for first in range(0, len(batch), size):
                yield [windows[i] for i in batch[first : first + size]]

    def _log_odds(self, rows, batch):
        """The logarithms of the probabilities of the tokens of windows: floats (B, T)."""
        length = self.preprocessor.bucket(max(end - begin for _, begin, end, _ in batch))
        features = {
            "token_ids": np.full((len(batch), length), self.preprocessor.tokenizer.pad_token_id),
            "padding_mask": np.zeros((len(batch), length)),
        }
        for i, (row, begin, end, _) in enumerate(batch):
            features["token_ids"][i, : end - begin] = rows[row][0][begin:end]
            features["padding_mask"][i, : end - begin] = 1
        features = {name: x.astype("int32") for name, x in features.items()}
        scorer = self.__dict__.get("_scorer")
        if scorer is None:
            scorer = TokenScorer(self)
            self.__dict__["_scorer"] = scorer  # Not by `setattr`: Keras would track it.
        return np.asarray(backend.predict_batch(scorer, features))

    def get_config(self) -> dict[str, Any]:
        settings = {field.name: getattr(self, field.name) for field in fields(MaskedHeadSettings)}
        return {**super().get_config(), **settings}


class TokenScorer(keras.Model):
    """The logarithm of the probability of each token after those before it, (B, T); 0 of the first.

    Args:
        model: a `BertCausalLM`.
    """

    def __init__(self, model):
        super().__init__(dtype=model.dtype_policy, name="token_scorer")
        self.backbone = model.backbone
        self.lm_head = model.lm_head
        self.built = True

    def call(self, inputs):
        inputs = self.backbone.fill_in(inputs)
        logits = self.lm_head(self.backbone(inputs)["sequence_output"])  # (B, T, V)
        # The plain form: a server has no operations of TensorFlow's gradient.
        scores = -backend.cross_entropy.plain(inputs["token_ids"][:, 1:], logits[:, :-1])
        return ops.pad(scores, [[0, 0], [1, 0]])
