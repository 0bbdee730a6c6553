"""Transformer-XL: a language model with segment-level recurrence.

B batch, T tokens, M memory tokens, L layers, D width, V tokens in the vocabulary.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from kerasbert import backend
from kerasbert.base.errors import check_heads, check_value, check_whole
from kerasbert.base.finite import check_outputs, with_finite_check
from kerasbert.base.process import check_process
from kerasbert.encoder.preset_backbone import PresetBackbone
from kerasbert.families.settings import LINEAGE_SETTINGS, SETTINGS
from kerasbert.heads.base.writing_task import TokenTask
from kerasbert.layers.adaptive import AdaptiveEmbedding, AdaptiveSoftmax
from kerasbert.layers.block import TransformerBlock
from kerasbert.layers.relative_attention import RelativeAttention, RelativeContext
from kerasbert.layers.token_layers import TokenDropout
from kerasbert.lineage.memory import check_memory, remember
from kerasbert.lineage.transformer_xl.stream import FreshMemory, StreamTrainer, in_segments
from kerasbert.optimizers import AdamW
from kerasbert.samplers import BeamSampler, own_sampler

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Self

    from kerasbert.base.aliases import Found, Tensor, Texts


@keras.saving.register_keras_serializable(package="kerasbert")
class TransformerXLBackbone(PresetBackbone):
    """Transformer-XL: maps token ids and a memory to outputs and the next memory.

    Inputs are a dict of `token_ids` (B, T) and, optionally, `memory` (B, L, M, D), each layer's
    inputs at the M previous tokens. Outputs are a dict of `sequence_output` (B, T, D) and `memory`,
    extended by the current tokens. The model keeps no state; the memory passes no gradients.

    Args:
        vocabulary_size: int. With `cutoffs`, ids must be sorted by frequency, most frequent first.
        num_layers: int.
        num_heads: int. Must divide `hidden_dim`.
        hidden_dim: int.
        intermediate_dim: width of the feed-forward network.
        dropout: dropout on embeddings, position encodings, outputs and sublayer outputs.
        attention_dropout: dropout on the attention probabilities.
        embedding_dim, cutoffs, division: see `kerasbert.layers.adaptive.AdaptiveEmbedding`.
        memory_length: maximum number of tokens in the returned memory.
        same_length: whether each token attends to `memory_length` tokens, including itself.
        clamp_length: limit to which relative positions are clamped; `None` for no limit.
        shares_biases: whether all layers share the query biases.
        activation: string. See `BertBackbone`.
        layer_norm_epsilon: float.
        initializer_range: float.
        dtype: string or policy.

    Example:

    >>> backbone = TransformerXLBackbone(
    ...     vocabulary_size=100, num_layers=2, num_heads=2, hidden_dim=16, intermediate_dim=32,
    ...     memory_length=8,
    ... )
    >>> first = backbone({"token_ids": np.ones((3, 5), "int32")})
    >>> after = backbone({"token_ids": np.ones((3, 5), "int32"), "memory": first["memory"]})
    >>> tuple(first["memory"].shape), tuple(after["memory"].shape)
    ((3, 2, 5, 16), (3, 2, 8, 16))

    Source: Dai et al. 2019, arXiv 1901.02860.
    """

    family = "transformer_xl"
    pooler = False
    setting_names = (
        *("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim"),
        *("dropout", "attention_dropout", "embedding_dim", "cutoffs", "division"),
        *("memory_length", "same_length", "clamp_length", "shares_biases", "activation"),
        *("layer_norm_epsilon", "initializer_range"),
    )

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        intermediate_dim: int,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        embedding_dim: int | None = None,
        cutoffs: Sequence[Any] = (),
        division: int = 1,
        memory_length: int = 128,
        same_length: bool = False,
        clamp_length: int | None = None,
        shares_biases: bool = True,
        activation: str = "relu",
        layer_norm_epsilon: float = 1e-5,
        initializer_range: float = 0.02,
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        check_process()
        cutoffs = list(cutoffs) if isinstance(cutoffs, tuple) else cutoffs
        self._set_settings(locals(), SETTINGS | LINEAGE_SETTINGS)
        check_heads(hidden_dim, num_heads)
        if same_length and not memory_length:
            raise ValueError(
                "same_length=True lets each token attend to memory_length=0 tokens; set "
                "memory_length to 1 or more."
            )

        def initializer():
            return keras.initializers.TruncatedNormal(stddev=initializer_range)

        # === Layers ===
        self.token_embedding = AdaptiveEmbedding(
            *(vocabulary_size, hidden_dim, embedding_dim, cutoffs, division),
            dtype=dtype,
            name="token_embedding",
        )
        self.embeddings_dropout = TokenDropout(dropout, dtype=dtype, name="embeddings_dropout")
        self.context = RelativeContext(
            is_causal=True,
            span=memory_length if same_length else None,
            clamp_length=clamp_length,
            dropout=dropout,
            bias_shape=(num_heads, hidden_dim // num_heads) if shares_biases else None,
            dtype=dtype,
            name="context",
        )
        self.transformer_layers = [
            TransformerBlock(
                num_heads,
                intermediate_dim,
                activation=activation,
                dropout=dropout,
                layer_norm_epsilon=layer_norm_epsilon,
                kernel_initializer=initializer(),
                attention=RelativeAttention(
                    num_heads,
                    attention_dropout,
                    shares_biases=shares_biases,
                    kernel_initializer=initializer(),
                    dtype=dtype,
                    name="attention",
                ),
                dtype=dtype,
                name=f"transformer_layer_{i}",
            )
            for i in range(num_layers)
        ]
        self.output_dropout = TokenDropout(dropout, dtype=dtype, name="output_dropout")

        # === Functional model ===
        inputs = {
            "token_ids": keras.Input((None,), dtype="int32", name="token_ids"),
            "memory": keras.Input(
                (num_layers, None, hidden_dim),
                dtype=keras.dtype_policies.get(dtype).compute_dtype,
                name="memory",
            ),
        }
        super().__init__(inputs=inputs, outputs=self.outputs_of(inputs), dtype=dtype, **kwargs)

    def outputs_of(self, inputs: Tensor) -> Any:
        """Compute the outputs for tensors or symbolic inputs; `memory` is optional."""
        outputs, got = self.outputs_and_states(inputs)
        memory = remember(got, inputs.get("memory"), self.memory_length)
        return {"sequence_output": outputs, "memory": memory}

    def outputs_and_states(self, inputs: Tensor) -> tuple[Any, Any]:
        """Return the outputs (B, T, D) and the list of each layer's inputs (B, T, D)."""
        memory = inputs.get("memory")
        x = self.embeddings_dropout(self.token_embedding(inputs["token_ids"]))
        context = self.context(x, memory=memory)
        mask = context.pop("attention_mask")
        context.pop("query_mask")  # Only XLNet's query stream needs it.
        got = []
        for i, block in enumerate(self.transformer_layers):
            got.append(x)
            if memory is not None:
                context["memory"] = memory[:, i]
            x = block(x, attention_mask=mask, attention_inputs=context)
        return self.output_dropout(x), got

    def fill_in(self, inputs: Tensor) -> dict[str, Any]:
        """Add an empty memory if the inputs have none."""
        if not isinstance(inputs["token_ids"], keras.KerasTensor):
            inputs = {name: ops.convert_to_tensor(value) for name, value in inputs.items()}
        if "memory" in inputs:
            check_memory(inputs["memory"], inputs["token_ids"], self)
            return inputs
        shape = (ops.shape(inputs["token_ids"])[0], self.num_layers, 0, self.hidden_dim)
        return {**inputs, "memory": ops.zeros(shape, dtype=self.compute_dtype)}


@keras.saving.register_keras_serializable(package="kerasbert")
class TransformerXLLM(TokenTask):
    """Next-token prediction with Transformer-XL, for texts of any length.

    The output is log-probabilities (B, T, V) of the next tokens. `fit` takes `token_ids` (B, T),
    and the next tokens as labels (B, T), without memory. With memory, `fit_stream` trains on
    consecutive segments of a text, `evaluate_stream` scores one, and `generate` continues one.

    Args:
        backbone: a `TransformerXLBackbone`.
        characters: the characters with ids 0, 1, ..., for a character-level model.
        tied_projections: see `kerasbert.layers.adaptive.AdaptiveSoftmax`.
        preprocessor: must be `None`.

    Example:

    >>> backbone = TransformerXLBackbone(
    ...     vocabulary_size=4, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> model = TransformerXLLM(backbone, characters=" abn")
    >>> 1.5 < model.evaluate_stream("a banana", segment=4, memory=4) < 2.5
    True
    """

    backbone_cls = TransformerXLBackbone
    preprocessor_cls = None
    kind = "causal_lm"

    def __init__(
        self,
        backbone: TransformerXLBackbone,
        characters: str | None = None,
        tied_projections: Any = None,
        preprocessor: Any = None,
        **kwargs: Any,
    ) -> None:
        self._check_encoder(backbone)
        check_value("characters", characters, "name?")
        if preprocessor is not None:
            raise ValueError(
                f"preprocessor must be None, got a {type(preprocessor).__name__}: "
                f"{type(self).__name__} reads token ids, or texts by its `characters`."
            )
        if characters is not None and len(set(characters)) != len(characters):
            raise ValueError("characters must be distinct, but one occurs twice.")
        if characters is not None and len(characters) > backbone.vocabulary_size:
            raise ValueError(
                f"characters has {len(characters)} characters, more than the backbone's "
                f"vocabulary_size of {backbone.vocabulary_size}."
            )
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = None
        self.lm_head = AdaptiveSoftmax(
            backbone.token_embedding,
            tied_projections,
            dtype=backbone.dtype_policy,
            name="lm_head",
        )
        self.characters = characters
        self.tied_projections = tied_projections

        # === Functional model ===
        inputs = {"token_ids": backbone.input["token_ids"]}
        outputs = self.lm_head(backbone.outputs_of(inputs)["sequence_output"])
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    def compile(
        self, optimizer: Any = "auto", loss: Any = "auto", *, metrics: Any = "auto", **kwargs: Any
    ) -> None:
        """Configure training; the default optimizer is AdamW at 5e-4. See `BertTask.compile`."""
        if isinstance(optimizer, str) and optimizer == "auto":
            optimizer = AdamW(5e-4)
        super().compile(optimizer, loss, metrics=metrics, **kwargs)

    @classmethod
    def from_source(cls, source: Found, load_weights: bool = True, **kwargs: Any) -> Self:
        kwargs.setdefault("preprocessor", None)
        return super().from_source(source, load_weights, **kwargs)

    @classmethod
    def output_weight(cls, settings: Any) -> str:
        return "lm_head/bias_0"

    def fill_in(self, inputs: Tensor) -> dict[str, Any]:
        """Return the inputs unchanged: a text starts without a memory."""
        return inputs

    def read_on(self, inputs: Mapping[str, Any], memory: Tensor = None) -> tuple[Any, Any]:
        """Compute log-probabilities, and the memory for the next segment of the texts.

        Args:
            inputs: dict of `token_ids` (B, T).
            memory: (B, L, M, D), returned for the previous segment; `None` for the first.

        Returns:
            `(log_probabilities, memory)`.
        """
        inputs = {"token_ids": ops.convert_to_tensor(inputs["token_ids"])}
        if memory is not None:
            inputs["memory"] = memory
        outputs = self.backbone(inputs)
        return self.lm_head(outputs["sequence_output"]), outputs["memory"]

    def ids_of(self, text: str) -> np.ndarray:
        """Convert a text's characters to ids (T,); an array of ids is checked and returned."""
        if isinstance(text, str):
            if self.characters is None:
                raise ValueError(
                    "This model has no `characters` and cannot read a text; pass token ids, or "
                    "build it with characters=... ."
                )
            place = {character: id for id, character in enumerate(self.characters)}
            for position, character in enumerate(text):
                if character not in place:
                    raise ValueError(
                        f"Character {position} of the text, {character!r}, is not among the "
                        f"model's {len(place)} characters; replace it, or train a model with it."
                    )
            return np.array([place[character] for character in text], "int32")
        ids = np.asarray(text)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise ValueError(
                f"text must be a string or an array of ids (T,), got an array of shape "
                f"{ids.shape} and type {ids.dtype}."
            )
        count = self.backbone.vocabulary_size
        if ids.size and not 0 <= ids.min() <= ids.max() < count:
            raise ValueError(
                f"text has ids from {ids.min()} to {ids.max()}; this model's are 0 to {count - 1}."
            )
        return ids.astype("int32")

    def evaluate_stream(self, text: Texts, segment: int = 128, memory: int | None = None) -> float:
        """Compute the mean bits per character or token of a text, segment by segment.

        Memory use does not depend on the text's length. The first token is not counted.

        Args:
            text: a string, or ids (T,).
            segment: number of tokens per segment.
            memory: maximum number of memory tokens; defaults to the backbone's `memory_length`.

        Returns:
            A float, the mean of -log2(probability).

        Raises:
            ValueError: for a text of fewer than two tokens.
        """
        check_whole("segment", segment)
        memory = self.backbone.memory_length if memory is None else memory
        check_whole("memory", memory, 0)
        ids = self.ids_of(text)
        if len(ids) < 2:
            raise ValueError(
                f"text has {len(ids)} tokens and needs at least two: the first predicts the second."
            )
        total, past = 0.0, None
        with backend.without_gradients():
            for first in range(0, len(ids) - 1, segment):
                part = ids[first : min(first + segment, len(ids) - 1)]
                outputs, past = self._part(part[None], past, memory)
                scores = ops.convert_to_numpy(ops.cast(outputs, "float32"))[0]
                following = ids[first + 1 : first + 1 + len(part)]
                total -= float(scores[np.arange(len(part)), following].sum(dtype="float64"))
        return check_outputs(self, total / (len(ids) - 1) / math.log(2))

    def fit_stream(
        self,
        text: Texts,
        segment: int = 128,
        batch_size: int = 8,
        memory: int | None = None,
        epochs: int = 1,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """Train on consecutive segments of a text, each with the memory of the earlier ones.

        The text is split into `batch_size` parallel streams. The memory begins with zeros in every
        epoch, and passes no gradients to earlier segments. The last tokens may be left out.

        Args:
            text: a string, or ids (T,).
            segment: number of tokens per segment.
            batch_size: number of streams.
            memory: number of memory tokens; defaults to the backbone's `memory_length`.
            epochs: int.
            **kwargs: `callbacks`, `verbose` and others of `keras.Model.fit`, except data.

        Raises:
            ValueError: for a text shorter than one batch, and a model compiled with `adversarial`
                or `r_drop`, which only `fit` supports.

        Source: Dai et al. 2019, arXiv 1901.02860, section 3.2.
        """
        check_process()
        memory = self.backbone.memory_length if memory is None else memory
        for name in ("segment", "batch_size", "memory", "epochs"):
            check_whole(name, locals()[name])
        for option, value in self._running.regularizer.config().items():
            raise ValueError(
                f"The model was compiled with {option}={value!r}, which has no effect in "
                "fit_stream(); compile it without, or use fit()."
            )
        ids = self.ids_of(text)
        if len(ids) <= batch_size * segment:
            raise ValueError(
                f"text has {len(ids)} tokens, but a batch of batch_size={batch_size} segments of "
                f"segment={segment} tokens needs {batch_size * segment + 1}; reduce one of the two."
            )
        trainer = StreamTrainer(self, batch_size, memory)
        trainer.compile(
            self.optimizer,
            self.loss,
            weighted_metrics=self.default_metrics(),
            jit_compile=self.jit_compile,
            run_eagerly=self.run_eagerly,
        )
        callbacks = [FreshMemory(), *with_finite_check(kwargs.pop("callbacks", None))]
        x, y = in_segments(ids, batch_size, segment)
        return trainer.fit(x, y, batch_size, epochs, shuffle=False, callbacks=callbacks, **kwargs)

    def generate(
        self,
        text: Texts,
        length: int = 100,
        sampler: Any = "top_k",
        segment: int = 128,
        memory: int | None = None,
    ) -> Any:
        """Continue a text, token by token, with the memory of all tokens so far.

        Args:
            text: a string, or ids (T,), at least one token.
            length: number of tokens to generate.
            sampler: "top_k", "greedy", "top_p", "random", or an object of `keras_hub.samplers`.
            segment: number of tokens per segment in which `text` is read.
            memory: maximum number of memory tokens; defaults to the backbone's `memory_length`.

        Returns:
            The generated text without `text`: a string, or ids (length,) for ids.
        """
        check_process()
        memory = self.backbone.memory_length if memory is None else memory
        for name in ("length", "segment"):
            check_whole(name, locals()[name])
        check_whole("memory", memory, 0)
        sampler = own_sampler(sampler)
        if isinstance(sampler, BeamSampler):
            raise ValueError(
                "generate() keeps one memory and does not support a beam search; use another "
                "sampler, such as 'greedy'."
            )
        ids = self.ids_of(text)
        if not len(ids):
            raise ValueError("text has no tokens; generate() continues a text of at least one.")
        found, past = [], None
        with backend.without_gradients():
            for first in range(0, len(ids), segment):
                outputs, past = self._part(ids[None, first : first + segment], past, memory)
            for _ in range(length):
                scores = ops.cast(outputs[:, -1], "float32")
                token = sampler.get_next_token(sampler.compute_probabilities(scores))
                found.append(int(ops.convert_to_numpy(token)[0]))
                outputs, past = self._part(np.array([found[-1:]], "int32"), past, memory)
        check_outputs(self, ops.convert_to_numpy(ops.cast(outputs, "float32")))
        if not isinstance(text, str):
            return np.array(found, "int32")
        # Ids beyond the characters have none.
        return "".join(self.characters[id] for id in found if id < len(self.characters))

    def _part(self, ids, past, most):
        inputs = {"token_ids": ops.convert_to_tensor(ids)}
        if past is not None:
            inputs["memory"] = past
        outputs, got = self.backbone.outputs_and_states(inputs)
        return self.lm_head(outputs), remember(got, past, most)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "characters": self.characters,
            "tied_projections": self.tied_projections,
        }
