"""The original transformer (2017), an encoder-decoder for translation.

N texts or heads, B batch, S source tokens, T target tokens, V vocabulary, D width, H head width, K
beams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import keras_hub
import numpy as np
from keras import ops

from kerasbert import backend
from kerasbert.base.errors import check_heads, check_whole, is_whole
from kerasbert.base.parts import own_preprocessor
from kerasbert.base.process import check_process
from kerasbert.encoder.building import backbone_of, own_backbone
from kerasbert.encoder.preset_backbone import PresetBackbone
from kerasbert.families.settings import LINEAGE_SETTINGS, SETTINGS
from kerasbert.heads.base.head_metrics import TOKEN_CLASSES
from kerasbert.heads.base.inputs import has_ids
from kerasbert.heads.base.writing_task import WritingTask, begun, until_stop
from kerasbert.heads.causal_lm.model import MOST_LOGITS
from kerasbert.layers.attention import AttentionMask
from kerasbert.layers.block import TransformerBlock, layer_norm
from kerasbert.layers.decoder_block import TransformerDecoderBlock
from kerasbert.layers.dropout import TokenDropout
from kerasbert.layers.embeddings import SinusoidalPositions
from kerasbert.layers.heads import MaskedLMHead
from kerasbert.lineage.seq2seq.preprocessor import TransformerSeq2SeqLMPreprocessor
from kerasbert.losses import Perplexity, TokenAccuracy, TokenCrossEntropy
from kerasbert.samplers import BeamSampler, forbidding, leaving, own_sampler
from kerasbert.text.batching import restore_order
from kerasbert.text.marian import MarianTokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Self

    from numpy.typing import ArrayLike

    from kerasbert.base.aliases import Found, Tensor, Texts

INPUTS = (
    "encoder_token_ids",
    "encoder_padding_mask",
    "decoder_token_ids",
    "decoder_padding_mask",
)


@keras.saving.register_keras_serializable(package="kerasbert")
class TransformerSeq2SeqBackbone(PresetBackbone):
    """The original transformer: an encoder, and a decoder with cross-attention to its outputs.

    Encoder, decoder and logits share one token embedding; positions are sinusoidal. Inputs are a
    dict of `encoder_token_ids` and `encoder_padding_mask` (B, S), `decoder_token_ids` and
    `decoder_padding_mask` (B, T); masks are optional in calls on arrays. Outputs are a dict of
    `encoder_sequence_output` (B, S, D) and `decoder_sequence_output` (B, T, D).

    Args:
        vocabulary_size: int.
        num_layers: int. Encoder layers.
        num_heads: int. Must divide `hidden_dim`.
        hidden_dim: int. D, an even number.
        intermediate_dim: int. Width of the feed-forward network.
        num_decoder_layers, num_decoder_heads, decoder_intermediate_dim: ints. The same for the
            decoder; `None` takes the encoder's.
        dropout: float. Dropout on the embeddings and on each sublayer's output.
        attention_dropout: float. Dropout on the attention probabilities.
        max_sequence_length: int. Number of positions.
        activation: string. For the feed-forward network; Marian uses "silu".
        layer_norm_epsilon: float.
        norm_first: bool. Layer norm before each sublayer instead of after it, and a final norm in
            encoder and decoder.
        scale_embeddings: bool. Multiply the token embeddings by the square root of `hidden_dim`.
        dtype: string or policy.

    Example:

    >>> backbone = TransformerSeq2SeqBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> inputs = {"encoder_token_ids": [[5, 7, 9]], "decoder_token_ids": [[1, 4]]}
    >>> outputs = backbone(inputs)
    >>> [tuple(outputs[f"{name}_sequence_output"].shape) for name in ("encoder", "decoder")]
    [(1, 3, 8), (1, 2, 8)]

    Source: Vaswani et al. 2017, arXiv 1706.03762.
    """

    family = "marian"
    pooler = False
    setting_names = (
        *("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim"),
        *("num_decoder_layers", "num_decoder_heads", "decoder_intermediate_dim", "dropout"),
        *("attention_dropout", "max_sequence_length", "activation", "layer_norm_epsilon"),
        *("norm_first", "scale_embeddings"),
    )
    num_segments = 0

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        intermediate_dim: int,
        num_decoder_layers: int | None = None,
        num_decoder_heads: int | None = None,
        decoder_intermediate_dim: int | None = None,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        max_sequence_length: int = 512,
        activation: str = "relu",
        layer_norm_epsilon: float = 1e-5,
        norm_first: bool = False,
        scale_embeddings: bool = True,
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        check_process()
        num_decoder_layers = num_layers if num_decoder_layers is None else num_decoder_layers
        num_decoder_heads = num_heads if num_decoder_heads is None else num_decoder_heads
        if decoder_intermediate_dim is None:
            decoder_intermediate_dim = intermediate_dim
        self._set_settings(locals(), SETTINGS | LINEAGE_SETTINGS)
        check_heads(hidden_dim, num_heads)
        check_heads(hidden_dim, num_decoder_heads, "num_decoder_heads")

        # === Layers ===
        self.token_embedding = keras.layers.ReversibleEmbedding(
            vocabulary_size,
            hidden_dim,
            embeddings_initializer=keras.initializers.RandomNormal(
                stddev=hidden_dim**-0.5 if scale_embeddings else 0.02
            ),
            dtype=dtype,
            name="token_embedding",
        )
        self.positions = SinusoidalPositions(max_sequence_length, dtype=dtype, name="positions")
        self.embeddings_dropout = TokenDropout(dropout, dtype=dtype, name="embeddings_dropout")
        self.padding_mask = AttentionMask(name="padding_mask")
        self.causal_mask = AttentionMask(is_causal=True, name="causal_mask")
        shared = {
            "activation": activation,
            "dropout": dropout,
            "attention_dropout": attention_dropout,
            "layer_norm_epsilon": layer_norm_epsilon,
            "norm_first": norm_first,
            "dtype": dtype,
        }
        self.encoder_layers = [
            TransformerBlock(num_heads, intermediate_dim, name=f"encoder_layer_{i}", **shared)
            for i in range(num_layers)
        ]
        self.decoder_layers = [
            TransformerDecoderBlock(
                num_decoder_heads, decoder_intermediate_dim, name=f"decoder_layer_{i}", **shared
            )
            for i in range(num_decoder_layers)
        ]
        self.encoder_norm = self.decoder_norm = None
        if norm_first:
            self.encoder_norm, self.decoder_norm = (
                layer_norm(layer_norm_epsilon, True, dtype, name)
                for name in ("encoder_norm", "decoder_norm")
            )

        # === Functional model ===
        inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in INPUTS}
        memory = self.encode(inputs["encoder_token_ids"], inputs["encoder_padding_mask"])
        outputs = {
            "encoder_sequence_output": memory,
            "decoder_sequence_output": self._decode(inputs, memory),
        }
        super().__init__(inputs=inputs, outputs=outputs, dtype=dtype, **kwargs)

    @classmethod
    def from_source(cls, source: Found, load_weights: bool = True, **kwargs: Any) -> Self:
        build = own_backbone if source.is_own else backbone_of
        return build(cls, source, load_weights, **kwargs)

    # === From inputs to outputs ===

    def _embed(self, token_ids, start_index=None):
        x = self.token_embedding(token_ids)  # (B, T, D)
        if self.scale_embeddings:
            x = ops.multiply(x, self.hidden_dim**0.5)
        return self.embeddings_dropout(ops.add(x, self.positions(x, start_index=start_index)))

    def encode(self, token_ids: Tensor, padding_mask: Tensor) -> Tensor:
        """Encode token ids (B, S) with a padding mask (B, S) to outputs (B, S, D)."""
        x, mask = self._embed(token_ids), self.padding_mask(padding_mask)
        for block in self.encoder_layers:
            x = block(x, attention_mask=mask)
        return x if self.encoder_norm is None else self.encoder_norm(x)

    def _decode(self, inputs, memory):
        x = self._embed(inputs["decoder_token_ids"])
        mask = self.causal_mask(inputs["decoder_padding_mask"])
        memory_mask = self.padding_mask(inputs["encoder_padding_mask"])
        for block in self.decoder_layers:
            x = block(x, memory, memory_mask=memory_mask, attention_mask=mask)
        return x if self.decoder_norm is None else self.decoder_norm(x)

    def keys_values(self, memory: Tensor) -> Tensor:
        """Compute the keys and values of cross-attention: a tuple of (B, 2, S, N, H) per layer."""
        return tuple(block.cross_attention.keys_values(memory) for block in self.decoder_layers)

    def decode_with_cache(
        self,
        token_ids: ArrayLike,
        memory_mask: Tensor,
        keys_values: Tensor,
        cache: Tensor,
        cache_update_index: int,
    ) -> tuple[Any, Any]:
        """Decode the next C tokens of texts whose earlier tokens are cached.

        Args:
            token_ids: ints (B * K, C). K consecutive rows share one source.
            memory_mask: (B, S). Padding mask of the sources.
            keys_values: the result of `keys_values`.
            cache: tuple of a tensor (B * K, 2, T, N, H) per layer.
            cache_update_index: int. Position of the first of the C tokens.

        Returns:
            `(outputs, cache)`, with outputs (B * K, C, D).
        """
        x = self._embed(token_ids, cache_update_index)
        queries = cache_update_index + ops.arange(ops.shape(token_ids)[1], dtype="int32")
        keys = ops.arange(ops.shape(cache[0])[2], dtype="int32")
        mask = backend.is_seen(queries, keys, True, None)
        memory_mask = self.padding_mask(memory_mask)
        filled = []
        for block, own, pair in zip(self.decoder_layers, cache, keys_values):
            x, own = block(
                x,
                memory_mask=memory_mask,
                attention_mask=mask,  # (C, T)
                keys_values=pair,
                cache=own,
                cache_update_index=cache_update_index,
            )
            filled.append(own)
        return x if self.decoder_norm is None else self.decoder_norm(x), tuple(filled)

    def fill_in(self, inputs: Tensor) -> dict[str, Any]:
        """Add missing padding masks, which mark every position as a token."""
        inputs = {
            name: x if isinstance(x, keras.KerasTensor) else ops.convert_to_tensor(x)
            for name, x in inputs.items()
        }
        for name in ("encoder", "decoder"):
            ids = inputs.get(f"{name}_token_ids")
            if ids is not None and f"{name}_padding_mask" not in inputs:
                inputs[f"{name}_padding_mask"] = ops.ones_like(ids, dtype="int32")
        return inputs

    def __call__(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Any:
        check_process()
        if has_ids(inputs):
            inputs = self.fill_in(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def call(
        self, inputs: Tensor, training: bool | None = None, mask: Tensor = None, **kwargs: Any
    ) -> Tensor:
        return super().call(self.fill_in(inputs), training=training, mask=None, **kwargs)

    def default_lora_layer_names(self) -> list[str]:
        """Return the names of the layers that `enable_lora` adapts by default."""
        return ["qkv", "query", "kv"]


@keras.saving.register_keras_serializable(package="kerasbert")
class TransformerSeq2SeqLM(WritingTask):
    """Sequence-to-sequence language model, for example for translation.

    The output is logits (B, T, V) of the target's next tokens. `fit` and `evaluate` take raw
    strings, `fit((sources, targets))`, or preprocessed arrays, with the next tokens (B, T) as
    labels and sample weights (B, T) that are 0 at padding.

    The paper trains with `compile(Adam(WarmupInverseSqrt(d**-0.5 * 4000**-0.5, 4000), beta_1=0.9,
    beta_2=0.98, epsilon=1e-9))`, where d is `hidden_dim`, and a label smoothing of 0.1, as in
    `compile(loss="auto")`.

    Args:
        backbone: a `TransformerSeq2SeqBackbone`.
        preprocessor: a `TransformerSeq2SeqLMPreprocessor`, or `None` for preprocessed arrays.
        output_bias: bool. Add a bias to each token's logit (Marian's `final_logits_bias`).
        forbidden_token_ids: list of ints. Tokens that are never generated (Marian's
            `bad_words_ids`).
        forced_end_token_id: int. Token that is always generated at the last position.

    Example:

    >>> backbone = TransformerSeq2SeqBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> model = TransformerSeq2SeqLM(backbone)
    >>> inputs = {"encoder_token_ids": [[5, 7, 9]], "decoder_token_ids": [[1, 0, 0, 0]],
    ...           "decoder_padding_mask": [[1, 0, 0, 0]]}
    >>> model.generate(inputs, stop_token_ids=None)["decoder_token_ids"].shape
    (1, 4)

    Source: Vaswani et al. 2017, arXiv 1706.03762; Junczys-Dowmunt et al. 2018, arXiv 1804.00344
    (Marian).
    """

    backbone_cls = TransformerSeq2SeqBackbone
    preprocessor_cls = TransformerSeq2SeqLMPreprocessor
    kind = "seq2seq_lm"
    needs_head = False
    uses_pooler = True  # The backbone has no pooler to exclude from training.
    usual_sampler = "greedy"

    def __init__(
        self,
        backbone: TransformerSeq2SeqBackbone,
        preprocessor: TransformerSeq2SeqLMPreprocessor | None = None,
        output_bias: bool = False,
        forbidden_token_ids: Sequence[int] | None = None,
        forced_end_token_id: int | None = None,
        **kwargs: Any,
    ) -> None:
        self._check_encoder(backbone)
        forced = [] if forced_end_token_id is None else [forced_end_token_id]
        count = backbone.vocabulary_size
        for id in [*(forbidden_token_ids or ()), *forced]:
            if not is_whole(id) or not 0 <= id < count:
                raise ValueError(
                    f"forbidden_token_ids={forbidden_token_ids} and forced_end_token_id="
                    f"{forced_end_token_id} contain {id!r}; ids must be from 0 to {count - 1}."
                )
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = own_preprocessor(backbone, preprocessor, self.preprocessor_cls)
        self.lm_head = MaskedLMHead(
            backbone.token_embedding,
            output_bias=output_bias,
            transform=False,
            dtype=backbone.dtype_policy,
            name="lm_head",
        )
        self.output_bias = output_bias
        self.forbidden_token_ids = forbidden_token_ids
        self.forced_end_token_id = forced_end_token_id

        # === Functional model ===
        inputs = backbone.input
        outputs = self.lm_head(backbone(inputs)["decoder_sequence_output"])  # (B, T, V)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    @classmethod
    def from_source(cls, source: Found, load_weights: bool = True, **kwargs: Any) -> Self:
        head = None if source.is_own else source.head_maps.get(cls.kind)
        if head is not None:
            # Checkpoints without a bias are loaded into a model without one.
            (bias,) = head.theirs("lm_head/bias")
            kwargs.setdefault("output_bias", not load_weights or bias in source.tensors)
        return super().from_source(source, load_weights, **kwargs)

    # === Training ===

    def _needs_labels(self, is_raw):
        return not is_raw

    def default_loss(self) -> Any:
        """Return the cross-entropy with label smoothing of 0.1, averaged over the tokens."""
        return TokenCrossEntropy(label_smoothing=0.1)

    def default_metrics(self) -> Any:
        """Return accuracy and perplexity over the tokens."""
        return [TokenAccuracy(), Perplexity()]

    def metric_forms(self) -> Any:
        return TOKEN_CLASSES, self.backbone.vocabulary_size

    def _check_ids(self, x):
        for name in ("encoder_token_ids", "decoder_token_ids"):
            if isinstance(x, dict) and name in x:
                super()._check_ids({"token_ids": x[name]})

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
        texts, _ = self._as_lists((sources, targets), "score()")
        batches, order = self._sorted_batches(texts, batch_size=batch_size)
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

        found = np.concatenate(list(self._each_batch("predict", step, batches, verbose=0)))
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
            max_length: int. Maximum number of tokens to generate, including start and end;
                defaults to the preprocessor's `sequence_length`.
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
                `encoder_padding_mask` (B, S), `decoder_token_ids` (B, T), whose rows start with a
                prompt of at least one token, followed by free positions, and `decoder_padding_mask`
                (B, T), true at the prompt.
            max_length, batch_size: see `translate`. For arrays, the limit is the number of columns.
            stop_token_ids: ints that end a text; "auto" is the tokenizer's end token, and `None`
                generates until all positions are filled.

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
        sources, single = self._as_lists(texts, method)
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
        # Keyed by the sampler's settings, so that equal samplers share a compiled function.
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
        """Generate from a prepared batch, compiled where the backend supports it.

        Args:
            inputs: dict as in `generate`, and optionally `prompt_ids` (B, C), all prompt tokens in
                fewer columns.
            stop_token_ids: tuple of ints, or `None`.
            sampler: from `kerasbert.samplers` or `keras_hub.samplers`; `None` takes the one set by
                `compile`.

        Returns:
            A dict of `decoder_token_ids` and `decoder_padding_mask`, true up to each row's stop
            token.
        """
        backbone, forbidden = self.backbone, self.forbidden_token_ids or ()
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
        memory = backbone.encode(inputs["encoder_token_ids"], memory_mask)
        read = {f"memory_{i}": one for i, one in enumerate(backbone.keys_values(memory))}
        read["memory_mask"] = memory_mask
        layers = range(len(backbone.decoder_layers))

        def step(inputs):
            outputs, cache = backbone.decode_with_cache(
                inputs["token_ids"],
                inputs["memory_mask"],
                tuple(inputs[f"memory_{i}"] for i in layers),
                tuple(inputs[f"cache_{i}"] for i in layers),
                inputs["index"],
            )
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
            cache=self._fresh_cache(inputs.get("prompt_ids", token_ids), read, length),
            index=ops.min(ops.sum(ops.cast(is_prompt, "int32"), axis=-1)),
            mask=is_prompt,
            stop_token_ids=stop_token_ids or None,
            model=self,
        )
        is_text = until_stop(token_ids, is_prompt, stop_token_ids)
        return {
            "decoder_token_ids": ops.where(is_text, token_ids, given),
            "decoder_padding_mask": is_text,
        }

    def _fresh_cache(self, prompt_ids, read, length):
        """Create a cache for `length` tokens and fill in the prompts' keys and values."""
        backbone = self.backbone
        heads = backbone.num_decoder_heads
        shape = (ops.shape(prompt_ids)[0], 2, length, heads, backbone.hidden_dim // heads)
        layers = range(len(backbone.decoder_layers))
        cache = tuple(ops.zeros(shape, dtype=self.compute_dtype) for _ in layers)
        if prompt_ids.shape[1] == 1:
            return cache  # The first decoding step reads the single prompt token.
        keys_values = tuple(read[f"memory_{i}"] for i in layers)
        return backbone.decode_with_cache(prompt_ids, read["memory_mask"], keys_values, cache, 0)[1]

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

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "output_bias": self.output_bias,
            "forbidden_token_ids": self.forbidden_token_ids,
            "forced_end_token_id": self.forced_end_token_id,
        }


class TargetScorer(keras.Model):
    """Model that computes the log-probability of each target, (B,).

    Inputs are those of the language model, plus the tokens to predict: `token_ids` and
    `padding_mask` (B, T).

    Args:
        model: a `TransformerSeq2SeqLM`.
    """

    def __init__(self, model):
        super().__init__(dtype=model.dtype_policy, name="target_scorer")
        self.backbone = model.backbone
        self.lm_head = model.lm_head
        self.built = True

    def call(self, inputs):
        outputs = self.backbone({name: inputs[name] for name in INPUTS})
        logits = self.lm_head(outputs["decoder_sequence_output"])  # (B, T, V)
        # The plain kernel, because TensorFlow Serving lacks the ops of the custom gradient.
        scores = -backend.cross_entropy.plain(inputs["token_ids"], logits)
        return ops.sum(ops.where(inputs["padding_mask"] > 0, scores, 0.0), axis=-1)


class _Writer:
    """Compiled `generate_step` of a model with one sampler."""

    # Borrowed rather than inherited, as in `BertCausalLM`.
    make_generate_function = keras_hub.models.CausalLM.make_generate_function

    def __init__(self, model, sampler):
        self._model = model
        self.sampler = sampler
        self.generate_function = None

    def __getattr__(self, name):
        return getattr(self._model, name)

    def generate_step(self, inputs, stop_token_ids=None):
        return self._model.generate_step(inputs, stop_token_ids, self.sampler)


# KerasHub's loader finds the tokenizer and the preprocessor of a preset by its backbone.
for _cls in (TransformerSeq2SeqLMPreprocessor, MarianTokenizer):
    _cls.backbone_cls = TransformerSeq2SeqBackbone
