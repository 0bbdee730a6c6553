"""Causal language models, such as GPT.

N texts, B batch, T tokens, V vocabulary size.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import keras
import keras_hub
import numpy as np
from keras import ops

from kerasbert import backend
from kerasbert.backend.losses import cross_entropy
from kerasbert.base.errors import check_whole
from kerasbert.base.process import check_process
from kerasbert.encoder.backbone import BertBackbone
from kerasbert.families import head_settings
from kerasbert.heads.base.inputs import as_lists
from kerasbert.heads.base.writing_task import WritingTask, begun, until_stop
from kerasbert.heads.causal_lm.preprocessor import BertCausalLMPreprocessor
from kerasbert.heads.masked_lm.model import MaskedHeadSettings, head_config, vocabulary_head
from kerasbert.text.batch_plans import sorted_batches

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kerasbert.base.aliases import Tensor, Texts

# Logits per batch in `score`: 256 MB of float32.
MOST_LOGITS = 2**26


@keras.saving.register_keras_serializable(package="kerasbert")
class BertCausalLM(WritingTask):
    """Causal language model, such as GPT: predicts next tokens and generates text.

    The output is the logits (B, T, V) of each next token. `fit` and `evaluate` take raw strings, or
    arrays with the next tokens (B, T) as labels and sample weights (B, T), 0 at padding.
    `generate` and `compile(sampler=...)` work as in KerasHub.

    Args:
        backbone: a causal `BertBackbone`: of the family "gpt2", "gpt" or "modernbert_decoder", or
            built with `is_causal=True`.
        preprocessor: a `BertCausalLMPreprocessor`, or `None` for preprocessed arrays.
        head_activation: activation of a dense layer with a norm before the vocabulary projection;
            `None` for neither.
        head_bias: whether that layer has a bias.
        head_norm_epsilon: epsilon of that norm.
        output_bias: whether the logits have a bias.
        tie_weights: whether the vocabulary projection uses the token embedding.

    The last five default to the family's.

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
        self._set_parts(backbone, preprocessor, has_all=True)
        if not backbone.is_causal:
            raise ValueError(
                "The encoder is bidirectional, but a causal language model must not see the next "
                "token; load one of the family 'gpt2' or 'gpt', or build one with is_causal=True."
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
            "head_dim": None,
            **head_settings(backbone.family, self.kind),
        }
        self._set_given(vars(given), defaults)
        if backbone.embedding_dim is not None and self.head_activation is None:
            raise ValueError(
                f"The encoder's embedding_dim={backbone.embedding_dim} differs from the width of "
                "its outputs, so the embedding cannot project them to the vocabulary; use "
                "embedding_dim=None, or pass a head_activation."
            )
        # === Layers ===
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

    # === Generation ===

    def call_with_cache(
        self, token_ids: Tensor, cache: Tensor, cache_update_index: Any
    ) -> tuple[Any, ...]:
        """Compute logits with a cache; see `BertBackbone.call_with_cache`.

        Returns:
            `(logits, outputs, cache)`: logits (B, S, V), and the encoder's outputs and cache.
        """
        outputs, cache = self.backbone.call_with_cache(token_ids, cache, cache_update_index)
        return self.lm_head(outputs), outputs, cache

    def _fresh_cache(self, prompt_ids, length):
        """Return a cache for `length` tokens, filled with the keys and values of the prompts.

        Prompts run without padding to `length` and without logits.
        """
        backbone = self.backbone
        batch, tokens = ops.shape(prompt_ids)
        width = backbone.hidden_dim // backbone.num_heads
        empty = ops.zeros((batch, 2, tokens, backbone.num_heads, width), dtype=self.compute_dtype)
        cache = tuple(ops.copy(empty) for _ in backbone.transformer_layers)
        _, cache = backbone.call_with_cache(prompt_ids, cache, 0)
        rest = [[0, 0], [0, 0], [0, length - tokens], [0, 0], [0, 0]]
        return tuple(ops.pad(one, rest) for one in cache)

    # Not inherited: Keras changes the bases of functional classes, which fails if two share a base.
    make_generate_function = keras_hub.models.CausalLM.make_generate_function

    def generate_step(
        self, inputs: Mapping[str, Any], stop_token_ids: Any = None
    ) -> dict[str, Any]:
        """Generate tokens for one batch, compiled if possible.

        Args:
            inputs: dict of `token_ids` (B, T) with free columns after the prompts, `padding_mask`
                (B, T), true at prompts, and optionally `prompt_ids` (B, S), only the prompts'
                columns.
            stop_token_ids: tuple of ints, or `None`.

        Returns:
            A dict of `token_ids` and `padding_mask`, true up to the stop token.
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
        """Generate text from prompts with the sampler of `compile`.

        Args:
            inputs: a string, a list of N strings, or a dict of arrays as in `generate_step`.
            max_length: maximum number of tokens, including the prompt; defaults to the
                preprocessor's `sequence_length`. Arrays set it by their columns.
            stop_token_ids: ints. Tokens that end a text; "auto" is the tokenizer's end token,
                `None` none.
            strip_prompt: whether to return only the generated text.
            batch_size: int.

        Returns:
            A string, a list of N strings, or a dict of `token_ids` and `padding_mask`.

        Raises:
            ValueError: for a prompt without tokens, or one that fills `max_length`.
        """
        check_process()
        check_whole("batch_size", batch_size)
        stops = self._stops(stop_token_ids)
        if isinstance(inputs, dict):
            return self._write(self._checked_arrays(inputs), stops, strip_prompt)
        prompts, single = as_lists(self, inputs, "generate()")
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
        places = np.arange(size) + counts  # Move generated tokens to the front.
        ids, mask = (
            np.take_along_axis(outputs[name], np.minimum(places, size - 1), axis=1)
            for name in ("token_ids", "padding_mask")
        )
        return {"token_ids": ids, "padding_mask": mask.astype(bool) & (places < size)}

    def _checked_arrays(self, inputs):
        """Check and cast arrays that the caller passed to `generate`."""
        inputs = self._named_arrays(inputs, ("token_ids", "padding_mask"))
        return {**inputs, **self._checked_rows(inputs)}

    # === Scoring ===

    def score(self, texts: Texts, stride: int | None = None, batch_size: int = 32) -> Any:
        """Compute the log-probability of each token.

        The first token has no score, unless `add_start_token=True` in the preprocessor. Texts
        longer than `sequence_length` are split into windows.

        Args:
            texts: a string or a list of N strings.
            stride: number of tokens between the starts of windows. Scored tokens of later windows
                have at least `sequence_length - stride` tokens of context. `None` means half a
                window.
            batch_size: int.

        Returns:
            For a text, a list of dicts, one per token: `token`, `token_id`, `start` and `end` in
            characters, and `score`. For a list, a list of these.
        """
        texts, single = as_lists(self, texts, "score()")
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
        """Compute perplexity: the exponential of the mean negative `score` of a text's tokens.

        Returns:
            A float for a text, floats (N,) for a list.

        Raises:
            ValueError: for a text without a scored token.
        """
        texts, single = as_lists(self, texts, "perplexity()")
        rows = self.score(list(texts), stride, batch_size)
        for position, row in enumerate(rows):
            if not row:
                raise ValueError(
                    f"The text at position {position} has no token to predict, because the first "
                    "one has no context; omit it, or set the preprocessor's add_start_token=True."
                )
        found = [math.exp(-np.mean([one["score"] for one in row])) for row in rows]
        return found[0] if single else np.array(found)

    def _score_batches(self, windows, batch_size):
        """Yield batches of windows of similar length, up to `MOST_LOGITS` logits."""
        check_whole("batch_size", batch_size)
        lengths = [end - begin for _, begin, end, _ in windows]
        for batch in sorted_batches(lengths, batch_size) if windows else ():
            longest = self.preprocessor.bucket(max(lengths[i] for i in batch))
            size = max(1, MOST_LOGITS // (longest * self.backbone.vocabulary_size))
            for first in range(0, len(batch), size):
                yield [windows[i] for i in batch[first : first + size]]

    def _log_odds(self, rows, batch):
        """Compute log-probabilities of the windows' tokens: floats (B, T)."""
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
            self.__dict__["_scorer"] = scorer  # `setattr` would make Keras track it.
        return np.asarray(backend.predict_batch(scorer, features))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **head_config(self)}


class TokenScorer(keras.Model):
    """Log-probability of each token given those before it, (B, T); 0 for the first.

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
        # The plain form, because servers lack ops of TensorFlow's custom gradient.
        scores = -cross_entropy.plain(inputs["token_ids"][:, 1:], logits[:, :-1])
        return ops.pad(scores, [[0, 0], [1, 0]])
