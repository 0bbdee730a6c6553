"""Sparse embeddings (SPLADE) for lexical search with term expansion.

N texts, B batch, C columns of texts, T tokens, V vocabulary size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert import backend
from kerasbert.base.errors import check_whole
from kerasbert.encoder.backbone import BertBackbone
from kerasbert.heads.base.comparing_task import ComparingTask, check_alike
from kerasbert.heads.base.inputs import as_lists, sorted_batches
from kerasbert.heads.base.steps import batch_outputs
from kerasbert.heads.masked_lm.model import HasVocabularyHead, MaskedHeadSettings
from kerasbert.heads.sparse_embedder.preprocessor import BertSparseEmbedderPreprocessor
from kerasbert.layers.heads import WordWeights
from kerasbert.losses import ActiveWords, EmbeddingLoss, MatchingCosine, Sparse

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import ArrayLike

    from kerasbert.base.aliases import Texts


@keras.saving.register_keras_serializable(package="kerasbert")
class BertSparseEmbedder(HasVocabularyHead, ComparingTask):
    """SPLADE embedder: gives each word of the vocabulary a weight for a text.

    The weights come from a masked language model. The output is float32 (B, V), mostly 0 after
    training; dot products measure similarity. `fit` takes the data of `BertTextEmbedder.fit`, with
    the query first: pairs, triplets and longer tuples, pairs with scores, texts with classes, or
    texts with embeddings. The default loss compares dot products, and `kerasbert.losses.Sparse`
    keeps embeddings sparse.

        embedder = BertSparseEmbedder.from_preset("distilbert_base_en_uncased")
        embedder.shift_logits(passages[:200])
        embedder.fit((questions, passages), epochs=1)
        embedder.decode(embedder.embed("how tall are giraffes?"), top_k=5)

    `from_preset` takes masked language models, and directories of sentence-transformers'
    SparseEncoder.

    Args:
        backbone: a `BertBackbone`; it needs no pooler.
        preprocessor: a `BertSparseEmbedderPreprocessor`, or `None` for preprocessed arrays.
        pooling: "max" or "sum" over the tokens.
        activation: "relu" for weights log(1 + relu(logit)), or "log1p_relu", log(1 + x) of these.
        head_activation, head_bias, head_norm_epsilon, output_bias, tie_weights, head_dim: see
            `BertMaskedLM`.

    Example:

    >>> backbone = BertBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> embedder = BertSparseEmbedder(backbone)
    >>> embedder.predict({"token_ids": np.ones((3, 5), "int32")}, verbose=0).shape
    (3, 100)

    Sources: Formal et al. 2021, arXiv 2107.05720 and 2109.10086; names as in sentence-transformers.
    """

    backbone_cls = BertBackbone
    preprocessor_cls = BertSparseEmbedderPreprocessor
    kind = "sparse_embedder"

    def __init__(
        self,
        backbone: BertBackbone,
        preprocessor: BertSparseEmbedderPreprocessor | None = None,
        pooling: str = "max",
        activation: str = "relu",
        head_activation: str | None = None,
        head_bias: bool | None = None,
        head_norm_epsilon: float | None = None,
        output_bias: bool | None = None,
        tie_weights: bool | None = None,
        head_dim: int | None = None,
        **kwargs: Any,
    ) -> None:
        self._set_parts(backbone, preprocessor)
        self.pooling = pooling
        self.activation = activation
        head = MaskedHeadSettings(
            head_activation, head_bias, head_norm_epsilon, output_bias, tie_weights, head_dim
        )
        self._make_mlm_head(head, WordWeights, pooling=pooling, sparsity=activation)
        inputs = backbone.input
        states = backbone(inputs)["sequence_output"]  # (B, T, D)
        outputs = self.mlm_head(states, padding_mask=inputs["padding_mask"])  # (B, V)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    def default_loss(self) -> Any:
        """Return a loss that depends on the labels, with a sparsity penalty; see `Sparse`."""
        return Sparse(EmbeddingLoss(similarity="dot"))

    def default_metrics(self) -> Any:
        """Return the cosine similarity of positive pairs, and the number of active words."""
        return [MatchingCosine(), ActiveWords()]

    def shift_logits(self, texts: Texts, active_words: int = 50, batch_size: int = 32) -> float:
        """Shift all logits, so that texts have `active_words` active words on average.

        A shift does not change the softmax of a masked language model, but word weights are 0 only
        for negative logits: if almost all are positive, all texts have similar embeddings, the loss
        is in the hundreds, and training breaks the model. Call this method before `fit`, on a
        hundred typical texts.

        Args:
            texts: a list of strings, or a tuple of two lists for pairs.
            active_words: mean number of words per text with a weight above 0; less than V.
            batch_size: int.

        Returns:
            The float added to `mlm_head.bias`.

        Raises:
            ValueError: for a head without an output bias.
        """
        check_whole("active_words", active_words)
        vocabulary_size = self.backbone.vocabulary_size
        if active_words >= vocabulary_size:
            raise ValueError(
                f"active_words={active_words} must be below the vocabulary size {vocabulary_size}."
            )
        if self.mlm_head.bias is None:
            raise ValueError(
                "shift_logits() changes the output bias, but this head has none; build the model "
                "with output_bias=True."
            )
        texts, _ = as_lists(self, texts, "shift_logits()")
        batches, _ = sorted_batches(self, texts, batch_size=batch_size)
        found = []
        for batch in batches:
            features = self.fill_in(keras.utils.unpack_x_y_sample_weight(batch)[0])
            with backend.without_gradients():
                states = self.backbone(features, training=False)["sequence_output"]
                logits = self.mlm_head.highest_logits(states, features["padding_mask"])
            found.append(keras.ops.convert_to_numpy(logits))
        logits = np.concatenate(found)  # (N, V)
        count = active_words * len(logits)
        nearest = np.partition(logits, (-count - 1, -count), axis=None)[[-count - 1, -count]]
        shift = -float(nearest.mean())
        self.mlm_head.bias.assign(self.mlm_head.bias + shift)
        return shift

    def embed(
        self, texts: Texts, top_k: int | None = None, batch_size: int = 32, role: str | None = None
    ) -> Any:
        """Compute the word weights of texts, batched by length.

        Args:
            texts: a string, a list of strings, or a tuple of two of either for pairs.
            top_k: number of words with the largest weights to keep; `None` for all.
            batch_size: int.
            role: see `BertTextEmbedder.embed`.

        Returns:
            A `scipy.sparse.csr_array` of float32 (N, V), (1, V) for a single text.
        """
        from scipy import sparse

        if top_k is not None:
            check_whole("top_k", top_k)
        texts, _ = as_lists(self, texts, "embed()")
        batches, order = sorted_batches(
            self, texts, batch_size=batch_size, preprocessor=self._for_role(role)
        )
        parts = []
        for _, weights in batch_outputs(self, batches, verbose=0):
            weights = np.array(weights, "float32")
            if top_k is not None and top_k < weights.shape[1]:
                least = np.argpartition(-weights, top_k - 1, axis=1)[:, top_k:]
                np.put_along_axis(weights, least, 0, axis=1)
            parts.append(sparse.csr_array(weights))
        return sparse.vstack(parts, format="csr")[np.argsort(order)]

    def decode(self, vectors: ArrayLike, top_k: int | None = None) -> list[Any]:
        """Return the words of sparse embeddings and their weights, as in sentence-transformers.

        Args:
            vectors: (N, V), sparse or dense, or (V,).
            top_k: number of words per text; `None` for all.

        Returns:
            A list of N lists of tuples `(token, weight)`, the largest weight first; a single list
            for (V,).

        Raises:
            ValueError: for vectors of another width.
        """
        from scipy import sparse

        if self.preprocessor is None:
            raise ValueError("decode() needs a tokenizer, but this model has no preprocessor.")
        if top_k is not None:
            check_whole("top_k", top_k)
        if keras.ops.is_tensor(vectors):
            vectors = keras.ops.convert_to_numpy(vectors)
        width = self.backbone.vocabulary_size
        shape = np.shape(vectors)
        if len(shape) not in (1, 2) or shape[-1] != width:
            raise ValueError(
                f"decode() expects vectors (N, {width}) as returned by embed(), got the shape "
                f"{shape}."
            )
        single = len(shape) == 1
        rows = sparse.csr_array(vectors[None] if single else vectors)
        tokenizer = self.preprocessor.tokenizer
        count = tokenizer.vocabulary_size()
        found = []
        for start, end in zip(rows.indptr[:-1], rows.indptr[1:], strict=True):
            ids, weights = rows.indices[start:end], rows.data[start:end]
            is_named = (ids < count) & (weights != 0)
            ids, weights = ids[is_named], weights[is_named]
            order = np.lexsort((ids, -weights))[:top_k]
            found.append([(tokenizer.id_to_token(int(ids[i])), float(weights[i])) for i in order])
        return found[0] if single else found

    def similarity(self, query_embeddings: Any, document_embeddings: Any) -> Any:
        """Compute dot products of vectors (M, V) and (N, V), sparse or dense: float32 (M, N)."""
        check_alike(query_embeddings, document_embeddings)
        products = query_embeddings @ document_embeddings.T
        return products.toarray() if hasattr(products, "toarray") else np.asarray(products)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "pooling": self.pooling, "activation": self.activation}
