"""Dense embeddings of texts, text pairs or tokens.

N texts, B batch, C columns, T tokens, D encoder width, D' embedding width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from kerasbert.backend.layers import unit_length
from kerasbert.base.errors import check_whole
from kerasbert.base.parts import own_preprocessor
from kerasbert.encoder.backbone import BertBackbone
from kerasbert.heads.base.comparing_task import ComparingTask, check_alike
from kerasbert.heads.base.head_metrics import VECTORS
from kerasbert.heads.base.headed_task import check_vector_norm, check_zero_shot
from kerasbert.heads.base.inputs import as_lists, best_first, check_ranked, is_raw, sorted_batches
from kerasbert.heads.base.steps import batch_outputs
from kerasbert.heads.text_embedder.pooling import LISTED, check_pooling
from kerasbert.heads.text_embedder.preprocessor import BertTextEmbedderPreprocessor
from kerasbert.layers.block import only_blocks_remat
from kerasbert.layers.heads import ChoicesToRows, Pooling, ScalarMix
from kerasbert.layers.token_layers import activation_function
from kerasbert.layers.windows import WindowPooling
from kerasbert.losses import EmbeddingLoss, MatchingCosine, max_similarity

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from kerasbert.base.aliases import Tensor, Texts


@keras.saving.register_keras_serializable(package="kerasbert")
class BertTextEmbedder(ComparingTask):
    """Embedder: computes dense embeddings of texts or text pairs, pretrained or fine-tuned.

    The output is float32 (B, D') or, with `pooling="tokens"`, (B, T, D') with zeros at padding. D'
    is `truncate_dim`, else `projection_dim`, else the encoder's width, times 4 for
    "concat_last_four", times the number of poolings in a list. Unused parts of the encoder are not
    computed.

    The default loss, `kerasbert.losses.EmbeddingLoss`, depends on the data:

        embedder.fit((questions, passages))              # positive pairs: ranking
        embedder.fit((questions, passages, others))      # with hard negatives
        embedder.fit((texts, texts_b), scores)           # similarities: CoSENT; 0/1: contrastive
        embedder.fit(texts, classes)                     # batch-hard triplets
        embedder.fit(texts)                              # SimCSE: each text is its own positive
        embedder.fit(texts, vectors)                     # target embeddings: mean squared error

    Columns are embedded separately, and the loss gets embeddings (B, C, D'). Large batches for
    ranking fit into memory with `compile(chunk_size=32)`. After training with
    `kerasbert.losses.AdaptiveLayer`, `with_layers` can truncate the model after any layer.

    `pooling="tokens"` with a projection is late interaction (ColBERT). The input `vector_mask` then
    selects the tokens with embeddings, by default all but padding. Train it on pairs, triplets or a
    teacher's scores; the loss gets embeddings (B, C, T, D'). It ranks texts by MaxSim:

        colbert = BertTextEmbedder.from_preset(
            "bert_base_en_uncased", pooling="tokens", projection_dim=128, normalize=True,
            query_token="[unused0]", text_token="[unused1]", query_length=32, expand_queries=True,
        )
        colbert.fit((questions, passages))
        colbert.rank("who?", passages, top_k=3)

    Args:
        backbone: a `BertBackbone`.
        preprocessor: a `BertTextEmbedderPreprocessor`, or `None` for preprocessed arrays.
        pooling: "mean", "cls" (the first token), "max" (of each feature), a list of these, whose
            results are concatenated, "pooler" (`pooled_output`), or "tokens" (no pooling).
        layers: layers to pool: "embeddings" (before the first layer), "second_to_last", "last",
            "sum_last_four", "concat_last_four", "sum_all" (all layers without the embeddings), or
            "scalar_mix", a trained weighted average of embeddings and all layers.
        normalize: whether to scale embeddings to unit length. Defaults to whether `pooling_mode` is
            given, as in KerasHub.
        pooling_mode: KerasHub's name for `pooling`.
        projection_dim: width of a dense layer before `normalize`; `None` for none. Passed to
            `from_preset`, it makes a new layer.
        projection_bias: whether that layer has a bias.
        projection_activation: activation of that layer, such as "tanh".
        truncate_dim: number of features kept after `normalize`, also in training, without
            normalizing again, as in sentence-transformers.
        long: see `BertTextClassifier`. Windows are pooled before the projection; "windows" does not
            support `pooling="tokens"`.

    Example:

    >>> backbone = BertBackbone(
    ...     vocabulary_size=100, num_layers=4, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> embedder = BertTextEmbedder(backbone, layers="concat_last_four")
    >>> embedder.predict({"token_ids": np.ones((3, 5), "int32")}, verbose=0).shape
    (3, 32)

    Sources: Devlin et al. 2019, arXiv 1810.04805, section 5.3 (the layers); Peters et al. 2018,
    arXiv 1802.05365 (the mix); Reimers and Gurevych 2019, arXiv 1908.10084 (the poolings).
    """

    backbone_cls = BertBackbone
    preprocessor_cls = BertTextEmbedderPreprocessor
    kind = "text_embedder"
    needs_head = False
    takes_long = True

    def __init__(
        self,
        backbone: BertBackbone,
        preprocessor: BertTextEmbedderPreprocessor | None = None,
        pooling: str | Sequence[str] = "mean",
        layers: Any = "last",
        normalize: bool | None = None,
        pooling_mode: Any = None,
        projection_dim: int | None = None,
        projection_bias: bool = False,
        projection_activation: str | None = None,
        truncate_dim: int | None = None,
        long: Any = None,
        **kwargs: Any,
    ) -> None:
        if pooling_mode is not None:
            if pooling not in ("mean", pooling_mode):
                raise ValueError(
                    f"pooling={pooling!r} and pooling_mode={pooling_mode!r} are the same setting; "
                    "pass only one."
                )
            pooling = pooling_mode
        check_vector_norm(normalize)
        if normalize is None:
            normalize = pooling_mode is not None
        pooling = pooling if isinstance(pooling, str) else list(pooling)
        self._check_encoder(backbone)
        check_pooling(backbone, pooling, layers)
        if projection_dim is not None:
            check_whole("projection_dim", projection_dim)
        elif projection_bias or projection_activation:
            raise ValueError(
                f"projection_bias={projection_bias!r} and projection_activation="
                f"{projection_activation!r} need a projection; pass projection_dim too."
            )

        if truncate_dim is not None:
            check_whole("truncate_dim", truncate_dim)

        # === Layers === Keras does not track the encoder, as in KerasHub on PyTorch: it would warn
        # about unused weights, and weight decay would shrink them.
        object.__setattr__(self, "_backbone", backbone)
        preprocessor = own_preprocessor(backbone, preprocessor, self.preprocessor_cls, long)
        self._set_long(long, preprocessor)
        if self.long.has_windows and pooling == "tokens":
            raise ValueError(
                "long='windows' pools the windows of a text into one embedding, but "
                "pooling='tokens' keeps those of all tokens; use another pooling, or "
                "long='head_tail' or 'truncate'."
            )
        self.preprocessor = preprocessor
        self.scalar_mix = None
        if layers == "scalar_mix":
            self.scalar_mix = ScalarMix(dtype="float32", name="scalar_mix")
        self.projection = None
        if projection_dim is not None:
            initializer = keras.initializers.TruncatedNormal(stddev=backbone.initializer_range)
            self.projection = keras.layers.Dense(
                projection_dim,
                activation=activation_function(projection_activation or "linear"),
                use_bias=projection_bias,
                kernel_initializer=initializer,
                dtype="float32",
                name="projection",
            )

        # === Config ===
        self.pooling = pooling
        self.layers_used = layers  # Keras has an attribute `layers`.
        self.normalize = normalize
        self.projection_dim = projection_dim
        self.projection_bias = projection_bias
        self.projection_activation = projection_activation
        self.truncate_dim = truncate_dim
        # The graph continues the encoder's, without unused layers. Embeddings are always float32.
        inputs = self._window_inputs()
        if self.has_late_interaction:
            inputs["vector_mask"] = keras.Input((None,), dtype="int32", name="vector_mask")
        modes = [pooling] if isinstance(pooling, str) else pooling
        self._poolings = [
            Pooling(mode, dtype="float32", name=f"{mode}_pooling")
            for mode in modes
            if mode in LISTED
        ]
        x = self._pooled(self._combine(backbone.hidden_states), backbone.input["padding_mask"])
        self.windows_to_rows = self.window_pooling = self.window_encoder = None
        if self.long.has_windows:
            self.windows_to_rows = ChoicesToRows(name="windows_to_rows")
            self.window_pooling = WindowPooling(
                self.long.pooling, dtype="float32", name="window_pooling"
            )
            self.window_encoder = keras.Model(backbone.input, x, name="window_encoder")
            only_blocks_remat([self.window_encoder, *self.window_encoder.operations])
            rows = self.window_encoder(self.windows_to_rows(inputs))
            x = self.window_pooling(rows, padding_mask=inputs["padding_mask"])
        x = self._projected(x)
        if pooling == "tokens":
            mask = inputs.get("vector_mask", inputs["padding_mask"])
            x = ops.where(ops.cast(mask, "bool")[:, :, None], x, 0.0)
        super().__init__(inputs=inputs, outputs=x, **kwargs)

    def _combine(self, hidden_states):
        """Combine the embeddings and the layers' outputs into one tensor (B, T, D')."""
        if self.scalar_mix is not None:
            return self.scalar_mix(list(hidden_states))
        embeddings, *outputs = hidden_states
        chosen = {
            "embeddings": [embeddings],
            "second_to_last": outputs[-2:-1],
            "last": outputs[-1:],
            "sum_all": outputs,
        }.get(self.layers_used, outputs[-4:])
        chosen = [ops.cast(x, "float32") for x in chosen]
        if self.layers_used == "concat_last_four":
            return ops.concatenate(chosen, axis=-1)
        return sum(chosen[1:], chosen[0])

    def _pooled(self, x, padding_mask):
        """Pool outputs (B, T, D) to (B, D), except for tokens."""
        if self.pooling == "pooler":
            x = ops.cast(self.backbone.pooled_dense(x[:, 0, :]), "float32")
        elif self._poolings:
            pooled = [pool(x, padding_mask=padding_mask) for pool in self._poolings]
            x = pooled[0] if len(pooled) == 1 else ops.concatenate(pooled, axis=-1)
        return x

    def _projected(self, x):
        """Convert pooled outputs (..., D) to embeddings (..., D')."""
        x = x if self.projection is None else self.projection(x)
        x = unit_length(x) if self.normalize else x
        if self.truncate_dim is not None:
            if self.truncate_dim > x.shape[-1]:
                raise ValueError(
                    f"truncate_dim={self.truncate_dim} exceeds the embedding width {x.shape[-1]}; "
                    "pass a smaller one or None."
                )
            x = x[..., : self.truncate_dim]
        return x

    def _of_all_layers(self):
        if self.pooling == "tokens" or self.layers_used != "last":
            raise ValueError(
                "AdaptiveLayer needs layers='last' and a pooling other than 'tokens', got pooling="
                f"{self.pooling!r} and layers={self.layers_used!r}."
            )
        if self.long.has_windows:
            raise ValueError(
                "AdaptiveLayer does not support long='windows'; use 'truncate' or 'head_tail'."
            )
        embeddings, *outputs = self.backbone.hidden_states
        norm = self.backbone.final_layer_norm
        if norm is not None:  # As if the model ended at each layer.
            outputs = [*map(norm, outputs[:-1]), outputs[-1]]
        mask = self.input["padding_mask"]
        layers = (ops.cast(x, "float32") for x in (embeddings, *outputs))
        vectors = [self._projected(self._pooled(x, mask)) for x in layers]
        vectors = ops.stack(vectors, axis=1)  # (B, L + 1, D')
        model = keras.Model(self.input, vectors, name="all_layers")
        only_blocks_remat([model, *model.operations])
        return model

    @property
    def has_late_interaction(self) -> bool:
        """Whether `vector_mask`, not `padding_mask`, selects the tokens that have embeddings."""
        return self.pooling == "tokens" and self.projection is not None

    def fill_in(self, inputs: Tensor) -> dict[str, Any]:
        inputs = self.backbone.fill_in(inputs)
        if self.has_late_interaction:
            return {"vector_mask": inputs["padding_mask"], **inputs}
        return {name: x for name, x in inputs.items() if name != "vector_mask"}

    @property
    def uses_pooler(self) -> bool:
        return self.pooling == "pooler"

    @property
    def pooling_mode(self) -> str:
        """KerasHub's name for `pooling`."""
        return self.pooling

    def default_loss(self) -> Any:
        """Return a loss that depends on the labels; see `kerasbert.losses.EmbeddingLoss`."""
        return EmbeddingLoss()

    def default_metrics(self) -> Any:
        """Return the cosine similarity of positive pairs."""
        return [MatchingCosine()]

    def metric_forms(self) -> Any:
        return None if self.pooling == "tokens" else (VECTORS, None)

    def predict(
        self, x: Any = None, batch_size: int | None = None, role: str | None = None, **kwargs: Any
    ) -> np.ndarray:
        """Return embeddings of raw texts or arrays, in the order of `x`.

        With `pooling="tokens"`, T is that of the longest text; `embed` returns no padding. For
        `role`, see `embed`.
        """
        if self.pooling != "tokens" or not is_raw(self, x):
            return super().predict(x, batch_size, role, **kwargs)
        rows = self._token_vectors(x, batch_size, self._for_role(role), **kwargs)
        vectors = np.zeros((len(rows), max(map(len, rows)), rows[0].shape[-1]), "float32")
        for vector, row in zip(vectors, rows, strict=True):
            vector[: len(row)] = row
        return vectors

    def embed(self, texts: Texts, batch_size: int = 32, role: str | None = None) -> Any:
        """Embed texts, batched by length.

        Args:
            texts: a string, a list of strings, or a tuple of two of either for pairs.
            batch_size: int.
            role: "query", "text" or another key of the preprocessor's `prompts`, or `None`.

        Returns:
            float32 (N, D'), or (D',) for a single text. With `pooling="tokens"`, a list of N arrays
            (T, D') or one array, a row per token, special tokens included, without padding and
            `skiplist_words`.
        """
        texts, single = as_lists(self, texts, "embed()")
        if self.pooling == "tokens":
            vectors = self._token_vectors(texts, batch_size, self._for_role(role), verbose=0)
        else:
            vectors = self.predict(texts, batch_size=batch_size, role=role, verbose=0)
            vectors = np.asarray(vectors, "float32")
        return vectors[0] if single else vectors

    def rank(
        self,
        query: str,
        texts: Texts,
        top_k: int | None = None,
        batch_size: int = 32,
        return_texts: bool = False,
    ) -> list[dict[str, Any]]:
        """Rank texts by their `similarity` to a query.

        Works like `BertReranker.rank`, so an embedder can be the `reranker` of a
        `kerasbert.SearchIndex`.
        """
        texts = check_ranked(query, texts, top_k)
        if not texts:
            return []
        read, _ = as_lists(self, texts, "rank()")
        # Rounding may differ between rows, so equal texts run once.
        places = {text: place for place, text in enumerate(dict.fromkeys(read))}
        query = self.embed(query, role="query")
        vectors = self.embed(list(places), batch_size, role="text")
        if self.pooling == "tokens":
            # Equals `max_similarity`, without padding and a graph per shape.
            starts = np.cumsum([0, *map(len, vectors[:-1])])
            products = np.concatenate(vectors) @ query.T  # (T of all texts, S)
            scores = np.maximum.reduceat(products, starts).sum(axis=1)
        else:
            scores = vectors @ query
        scores = scores[[places[text] for text in read]]
        return best_first(scores, scores, texts, top_k, return_texts)

    def classify(
        self,
        texts: Texts,
        labels: Sequence[str],
        template: str = "{}",
        batch_size: int = 32,
    ) -> Any:
        """Classify texts zero-shot: the label is the one whose sentence is most similar.

            embedder = BertTextEmbedder.from_preset("minilm_mini_demo_en")
            embedder.classify("Who painted it?", labels=["person", "place", "number"])

        Args:
            texts: a string or a list of strings.
            labels: list of strings. Words or phrases that describe the classes.
            template: sentence for each of `labels`, with "{}" in place of the label.
            batch_size: int.

        Returns:
            For each text, a dict of `label`, `score` (its cosine similarity, which is not a
            probability) and `similarities` by label. If `texts` is a single text, a single dict.

        Raises:
            ValueError: for `pooling="tokens"` and for text pairs.
        """
        if self.pooling == "tokens":
            raise ValueError(
                "classify() compares one embedding per text, but pooling='tokens' gives one per "
                "token; use pooling='mean', or rank()."
            )
        texts, single = as_lists(self, texts, "classify()")
        labels = check_zero_shot(labels, template, texts)
        sentences = [template.replace("{}", label) for label in labels]
        vectors = (
            self.embed(texts, batch_size, "text"),
            self.embed(sentences, batch_size, "query"),
        )
        norms = (np.linalg.norm(x, axis=1, keepdims=True) for x in vectors)
        texts, sentences = (x / np.maximum(norm, 1e-12) for x, norm in zip(vectors, norms))
        cosines = texts @ sentences.T  # (N, L)
        rows = [dict(zip(labels, map(float, row), strict=True)) for row in cosines]
        best = [max(row, key=row.get) for row in rows]
        found = [
            {"label": label, "score": row[label], "similarities": row}
            for label, row in zip(best, rows, strict=True)
        ]
        return found[0] if single else found

    # === KerasHub's names, with the keyword arguments of `predict` ===

    def encode_text(self, text: str, **kwargs: Any) -> Any:
        """Embed N texts, and return (N, D'); a single text is treated as a list of one."""
        return self.predict([text] if isinstance(text, str) else text, **kwargs)

    def encode_documents(self, documents: Any, **kwargs: Any) -> Any:
        """Alias of `encode_text`."""
        return self.encode_text(documents, **kwargs)

    def similarity(self, query_embeddings: Any, document_embeddings: Any) -> Tensor:
        """Compute dot products of embeddings (M, D') and (N, D').

        With `normalize` these are cosines. Token embeddings (M, S, D') and (N, T, D') are compared
        by MaxSim.

        Returns:
            A tensor (M, N).
        """
        queries, documents = map(ops.convert_to_tensor, (query_embeddings, document_embeddings))
        check_alike(queries, documents)
        if self.pooling == "tokens":
            return max_similarity(queries, documents)
        return ops.matmul(queries, ops.transpose(documents))

    def _token_vectors(self, texts, batch_size, preprocessor=None, **kwargs):
        """Return a list of float32 (T, D'), which Keras cannot join."""
        dataset, order = sorted_batches(
            self, texts, batch_size=batch_size, preprocessor=preprocessor
        )
        rows = []
        for features, vectors in batch_outputs(self, dataset, **kwargs):
            vectors = np.asarray(vectors, "float32")
            masks = features["padding_mask"]
            if self.has_late_interaction:
                masks = features.get("vector_mask", masks)
            rows += [row[mask] for row, mask in zip(vectors, masks.astype(bool), strict=True)]
        return [rows[i] for i in np.argsort(order)]

    def get_config(self) -> dict[str, Any]:
        # Without defaults, earlier versions can read the config.
        later = {} if self.truncate_dim is None else {"truncate_dim": self.truncate_dim}
        if self.long.has_windows:
            later["long"] = self.long.in_config()
        return {
            **super().get_config(),
            **later,
            "pooling": self.pooling,
            "layers": self.layers_used,
            "normalize": self.normalize,
            "projection_dim": self.projection_dim,
            "projection_bias": self.projection_bias,
            "projection_activation": self.projection_activation,
        }
