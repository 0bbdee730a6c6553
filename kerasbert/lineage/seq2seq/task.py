"""Base class of sequence-to-sequence language models: scoring of targets and generation.

N texts, B batch, S source tokens, T target tokens, C prompt tokens, V vocabulary, D width, K beams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import keras_hub
import numpy as np
from keras import ops

from kerasbert import backend
from kerasbert.backend.losses import cross_entropy
from kerasbert.base.errors import check_whole
from kerasbert.base.process import check_process
from kerasbert.heads.base.inputs import as_lists, sorted_batches
from kerasbert.heads.base.steps import each_batch
from kerasbert.heads.base.writing_task import WritingTask, begun, until_stop
from kerasbert.heads.causal_lm.model import MOST_LOGITS
from kerasbert.lineage.seq2seq.backbone import INPUTS
from kerasbert.samplers import BeamSampler, forbidding, leaving, own_sampler
from kerasbert.text.batch_plans import restore_order

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kerasbert.base.aliases import Texts


class Seq2SeqTask(WritingTask):
    """Base class of sequence-to-sequence language models.

    Subclasses have a backbone with the inputs of `TransformerSeq2SeqBackbone` and the output
    `decoder_sequence_output` (B, T, D), a layer `lm_head`, and methods `_read_source`,
    `_fresh_cache` and `_decode_next`.
    """

    kind = "seq2seq_lm"
    id_inputs = ("encoder_token_ids", "decoder_token_ids")
    needs_head = False
    uses_pooler = True  # There is no pooler to exclude from training.
    usual_sampler = "greedy"
    forbidden_token_ids = forced_end_token_id = None

    def _read_source(self, token_ids, padding_mask):
        """Encode sources (B, S): a dict of tensors for `_fresh_cache` and `_decode_next`."""
        raise NotImplementedError

    def _fresh_cache(self, prompt_ids, first, read, length):
        """Return the cache before the first generated token, a tuple of tensors (B, ...).

        Args:
            prompt_ids: (B, C). The columns of the prompts, at least one.
            first: int tensor. Position of the first generated token, from 1. The cache has the
                tokens before `first - 1`, which `_decode_next` reads first.
            read: the result of `_read_source`.
            length: number of positions of the targets.
        """
        raise NotImplementedError

    def _decode_next(self, token_ids, read, cache, index):
        """Decode tokens (B * K, 1) at the position `index`: `(outputs (B * K, 1, D), cache)`."""
        raise NotImplementedError

    # === Scoring ===

    def score(self, sources: Texts, targets: Texts, batch_size: int = 32) -> Any:
        """Compute the log-probability of targets given their sources.

        Both are truncated at `sequence_length`.

        Args:
            sources, targets: strings, or lists of N strings.
            batch_size: int.

        Returns:
            The sum over the target's tokens and its end token: a float, or floats (N,) for lists.
        """
        texts, _ = as_lists(self, (sources, targets), "score()")
        batches, order = sorted_batches(self, texts, batch_size=batch_size)
        if "_scorer" not in self.__dict__:
            self.__dict__["_scorer"] = TargetScorer(self)  # Keras would track an attribute.

        def step(batch):
            x, y, weights = batch
            features = {**x, "token_ids": y, "padding_mask": weights}
            features = {name: np.asarray(x, "int32") for name, x in features.items()}
            size = max(1, MOST_LOGITS // (y.shape[1] * self.backbone.vocabulary_size))
            found = [
                backend.predict_batch(
                    self.__dict__["_scorer"],
                    {name: x[first : first + size] for name, x in features.items()},
                )
                for first in range(0, len(y), size)
            ]
            return np.concatenate(found), {"outputs": found}

        found = np.concatenate(list(each_batch(self, "predict", step, batches, verbose=0)))
        found = restore_order(found, order)
        return float(found[0]) if isinstance(sources, (str, bytes)) else found

    # === Generation ===

    def translate(
        self,
        texts: Texts,
        max_length: int | None = None,
        num_beams: int = 4,
        length_penalty: float = 1.0,
        batch_size: int = 32,
    ) -> Any:
        """Generate the target texts by beam search.

        Args:
            texts: a string or a list of N strings.
            max_length: maximum number of tokens, including start and end; defaults to the
                preprocessor's `sequence_length`.
            num_beams: int. 1 decodes greedily.
            length_penalty: float. See `kerasbert.samplers.BeamSampler`; the paper uses 4 beams and
                0.6, in a different formula.
            batch_size: int.

        Returns:
            A string, or a list of N strings.

        Raises:
            ValueError: if a text has no tokens, or too many.
        """
        check_process()
        check_whole("batch_size", batch_size)
        check_whole("num_beams", num_beams)
        if num_beams > self.backbone.vocabulary_size // 2:
            raise ValueError(
                f"num_beams={num_beams} is more than half of the vocabulary of "
                f"{self.backbone.vocabulary_size} tokens, of which each beam needs two; use fewer."
            )
        sampler = own_sampler("greedy")
        if num_beams > 1:
            sampler = BeamSampler(num_beams=num_beams, length_penalty=length_penalty)
        return self._write_texts(texts, "translate()", sampler, max_length, "auto", batch_size)

    def generate(
        self,
        inputs: Texts,
        max_length: int | None = None,
        stop_token_ids: Any = "auto",
        batch_size: int = 32,
    ) -> Any:
        """Generate with the sampler set by `compile`; see `translate`.

        Args:
            inputs: a string, a list of N strings, or a dict of `encoder_token_ids` and
                `encoder_padding_mask` (B, S), `decoder_token_ids` (B, T), whose rows are a prompt
                of at least one token and free positions, and `decoder_padding_mask` (B, T), true at
                the prompt.
            max_length, batch_size: see `translate`. For arrays, the limit is the number of columns.
            stop_token_ids: ints. Tokens that end a text; "auto" is the tokenizer's end token,
                `None` none.

        Returns:
            A string, a list of N strings, or a dict of `decoder_token_ids` and
            `decoder_padding_mask`.
        """
        check_process()
        check_whole("batch_size", batch_size)
        if not isinstance(inputs, dict):
            return self._write_texts(
                inputs, "generate()", self.sampler, max_length, stop_token_ids, batch_size
            )
        return self._write(self._checked_arrays(inputs), self._stops(stop_token_ids), self.sampler)

    def _write_texts(self, texts, method, sampler, max_length, stop_token_ids, batch_size):
        sources, single = as_lists(self, texts, method)
        stops = self._stops(stop_token_ids)
        written = []
        for first in range(0, len(sources), batch_size):
            batch = self.preprocessor.generate_preprocess(
                sources[first : first + batch_size], max_length, first
            )
            written += self.preprocessor.generate_postprocess(self._write(batch, stops, sampler))
        return written[0] if single else written

    def _write(self, inputs, stops, sampler):
        self._check_finite()
        # The sampler's settings are the key, so that equal samplers share a compiled function.
        key = repr(keras.saving.serialize_keras_object(sampler))
        writers = self.__dict__.setdefault("_writers", {})  # Keras would track a `setattr`.
        if key not in writers:
            writers[key] = _Writer(self, sampler)
        outputs = writers[key].make_generate_function()(inputs, stop_token_ids=stops)
        return {name: np.asarray(ops.convert_to_numpy(x)) for name, x in outputs.items()}

    def _forget_writing(self):
        self.__dict__["_writers"] = {}

    def generate_step(
        self, inputs: Mapping[str, Any], stop_token_ids: Any = None, sampler: Any = None
    ) -> dict[str, Any]:
        """Generate from a prepared batch, compiled if possible.

        Args:
            inputs: dict as in `generate`, and optionally `prompt_ids` (B, C), only the prompts'
                columns.
            stop_token_ids: tuple of ints, or `None`.
            sampler: an object of `kerasbert.samplers` or `keras_hub.samplers`; `None` means the one
                that `compile` set.

        Returns:
            A dict of `decoder_token_ids` and `decoder_padding_mask`, true up to each row's stop
            token.
        """
        forbidden = self.forbidden_token_ids or ()
        sampler = self.sampler if sampler is None else sampler
        if isinstance(sampler, BeamSampler):
            forbidden_there = {*sampler.forbidden_token_ids, *forbidden}
            settings = {**sampler.get_config(), "forbidden_token_ids": sorted(forbidden_there)}
            sampler, forbidden = BeamSampler(**settings), ()
        given = ops.cast(inputs["decoder_token_ids"], "int32")
        is_prompt = ops.cast(inputs["decoder_padding_mask"], "bool")
        token_ids = begun(given, is_prompt, stop_token_ids)
        length = token_ids.shape[1]
        memory_mask = ops.cast(inputs["encoder_padding_mask"], "bool")
        first = ops.min(ops.sum(ops.cast(is_prompt, "int32"), axis=-1))
        read = self._read_source(inputs["encoder_token_ids"], memory_mask)
        prompt_ids = inputs.get("prompt_ids", token_ids)
        fresh = self._fresh_cache(prompt_ids, first, read, length)

        def step(inputs):
            cache = tuple(inputs[f"cache_{i}"] for i in range(len(fresh)))
            outputs, cache = self._decode_next(inputs["token_ids"], inputs, cache, inputs["index"])
            return self.lm_head(outputs), outputs, cache

        def following(prompt, cache, index):
            last = ops.slice(prompt, (0, index - 1), (ops.shape(prompt)[0], 1))
            inputs = {"token_ids": last, "index": index - 1, **read}
            inputs |= {f"cache_{i}": one for i, one in enumerate(cache)}
            logits, outputs, cache = backend.run_in_loop(self, step, inputs)
            logits = forbidding(ops.cast(logits[:, 0], "float32"), forbidden)
            if self.forced_end_token_id is not None:
                forced = leaving(logits, self.forced_end_token_id)
                logits = ops.where(index + 1 < length, logits, forced)
            return logits, outputs[:, 0], cache

        token_ids = sampler(
            next=following,
            prompt=token_ids,
            cache=fresh,
            index=first,
            mask=is_prompt,
            stop_token_ids=stop_token_ids or None,
            model=self,
        )
        is_text = until_stop(token_ids, is_prompt, stop_token_ids)
        return {
            "decoder_token_ids": ops.where(is_text, token_ids, given),
            "decoder_padding_mask": is_text,
        }

    def _checked_arrays(self, inputs):
        """Check preprocessed arrays for `generate` and cast them."""
        inputs = self._named_arrays(inputs, ("encoder_token_ids", "decoder_token_ids"))
        checked = {
            **self._checked_rows(inputs, "encoder_"),
            **self._checked_rows(inputs, "decoder_"),
        }
        if len({len(x) for x in checked.values()}) > 1:
            raise ValueError(
                f"encoder_token_ids has {len(checked['encoder_token_ids'])} rows, and "
                f"decoder_token_ids has {len(checked['decoder_token_ids'])}; they must have the "
                "same number."
            )
        return {**inputs, **checked}


class TargetScorer(keras.Model):
    """Model that computes the log-probability of each target, (B,).

    Inputs are those of the language model, plus the tokens to predict: `token_ids` and
    `padding_mask` (B, T).

    Args:
        model: a `Seq2SeqTask`.
    """

    def __init__(self, model):
        super().__init__(dtype=model.dtype_policy, name="target_scorer")
        self.backbone = model.backbone
        self.lm_head = model.lm_head
        self.built = True

    def call(self, inputs):
        outputs = self.backbone({name: inputs[name] for name in INPUTS})
        logits = self.lm_head(outputs["decoder_sequence_output"])  # (B, T, V)
        # The plain form, because TensorFlow Serving lacks ops of the custom gradient.
        scores = -cross_entropy.plain(inputs["token_ids"], logits)
        return ops.sum(ops.where(inputs["padding_mask"] > 0, scores, 0.0), axis=-1)


class _Writer:
    """Compiled `generate_step` of a model with one sampler."""

    # Not inherited, as in `BertCausalLM`.
    make_generate_function = keras_hub.models.CausalLM.make_generate_function

    def __init__(self, model, sampler):
        self._model = model
        self.sampler = sampler
        self.generate_function = None

    def __getattr__(self, name):
        return getattr(self._model, name)

    def generate_step(self, inputs, stop_token_ids=None):
        return self._model.generate_step(inputs, stop_token_ids, self.sampler)
