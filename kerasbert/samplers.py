"""Samplers for `generate`, in addition to those of `keras_hub.samplers`.

B batch, K beams, T tokens, V vocabulary size, C candidates.
"""

from __future__ import annotations

from kerasbert.base import host  # noqa: F401

# isort: split
import functools
from typing import TYPE_CHECKING

import keras
import keras_hub
import numpy as np
from keras import ops

from kerasbert.base.errors import check_choice, check_value, check_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from kerasbert.base.aliases import Tensor

__all__ = [
    "BeamSampler",
]

# Samplers by name, which need only logits.
NAMES = ("top_k", "greedy", "beam", "top_p", "random")
# Score that rules out a token or beam.
_NONE = -1e9


@keras.saving.register_keras_serializable(package="kerasbert")
class BeamSampler(keras_hub.samplers.BeamSampler):
    """Beam search that stops at stop tokens and normalizes scores by length.

    KerasHub's beam search continues after the stop token, and searches prompts of different lengths
    jointly, so `compile` replaces "beam" and `keras_hub.samplers.BeamSampler` objects by this
    class. A score is the sum of log-probabilities after the prompt, divided by `count **
    length_penalty`. The search ends when no running beam beats the worst of K finished ones.

    Args:
        num_beams: int. K.
        length_penalty: float. 0 compares plain sums, which favors short texts.
        temperature: divisor of the logits.
        forbidden_token_ids: list of ints. Tokens that are never generated.

    Example:

    >>> BeamSampler(num_beams=4).get_config()
    {'temperature': 1.0, 'num_beams': 4, 'length_penalty': 1.0, 'forbidden_token_ids': []}

    Source: Wu et al. 2016, arXiv 1609.08144, section 7; same rules as `generate(num_beams=K)` in
    transformers.
    """

    def __init__(
        self,
        num_beams: int = 5,
        length_penalty: float = 1.0,
        temperature: float = 1.0,
        forbidden_token_ids: Sequence[int] = (),
        **kwargs: Any,
    ) -> None:
        check_whole("num_beams", num_beams)
        check_value("length_penalty", length_penalty, "number")
        check_value("temperature", temperature, "positive")
        for id in forbidden_token_ids:
            check_whole("forbidden_token_ids", id, 0)
        super().__init__(num_beams=num_beams, temperature=temperature, **kwargs)
        self.length_penalty = length_penalty
        self.forbidden_token_ids = tuple(forbidden_token_ids)

    def __call__(
        self,
        next: Callable[..., Any],
        prompt: Any,
        cache: Tensor = None,
        index: Any = 0,
        mask: Tensor = None,
        stop_token_ids: Any = None,
        hidden_states: Any = None,
        model: Any = None,
    ) -> Any:
        """See `keras_hub.samplers.Sampler`; `prompt` and `mask` are (B, T)."""
        beams, stops = self.num_beams, tuple(stop_token_ids or ())
        candidates = max(2, 1 + len(stops)) * beams
        batch, length = ops.shape(prompt)
        index = ops.cast(index, "int32")
        mask = ops.zeros_like(prompt, "bool") if mask is None else ops.cast(mask, "bool")
        begins = ops.sum(ops.cast(mask, "int32"), axis=-1, keepdims=True)  # (B, 1)
        first = ops.arange(beams, dtype="int32") == 0  # (K,)

        def of_beams(x, indices):
            """Gather (B, X, ...) to (B, Y, ...) by indices (B, Y)."""
            for _ in range(len(x.shape) - 2):
                indices = ops.expand_dims(indices, -1)
            return ops.take_along_axis(x, indices, axis=1)

        def repeated(x):
            return ops.repeat(x, beams, axis=0)

        def split(x):
            return ops.reshape(x, (-1, beams, *ops.shape(x)[1:]))

        def joined(x):
            return ops.reshape(x, (-1, *ops.shape(x)[2:]))

        running = split(repeated(prompt))  # (B, K, T)
        zeros = ops.zeros((batch, beams), "float32")
        state = {
            "index": index,
            "cache": keras.tree.map_structure(repeated, () if cache is None else cache),
            "running": running,
            "scores": ops.where(first, zeros, zeros + _NONE),
            "ended": running,
            "ended_scores": zeros + _NONE,
            "is_ended": ops.zeros((batch, beams), "bool"),
            # Whether a running beam may still beat the finished ones.
            "open": ops.ones((batch, 1), "bool"),
        }
        names = list(state)

        def body(*values):
            now = dict(zip(names, values))
            index = now["index"]
            waits = ops.take(mask, index, axis=1)[:, None]  # (B, 1): whether in the prompt.
            logits, _, cache = next(joined(now["running"]), now["cache"], index)
            logits = ops.cast(logits, "float32") / self.temperature  # (B * K, V)
            size = logits.shape[-1]
            odds = forbidding(ops.log_softmax(logits), self.forbidden_token_ids)
            sums = split(odds) + now["scores"][..., None]  # (B, K, V)
            sums, best = ops.top_k(ops.reshape(sums, (-1, beams * size)), candidates)  # (B, C)
            source = ops.cast(best // size, "int32")
            token = ops.cast(best % size, prompt.dtype)
            # Inside the prompt, beams stay, and backup candidates do not count.
            same = ops.arange(candidates, dtype="int32")[None] % beams
            source = ops.where(waits, same, source)
            there = ops.take(prompt, index, axis=1)[:, None]
            token = ops.where(waits, there, token)
            is_backup = ops.arange(candidates, dtype="int32")[None] >= beams  # (1, C)
            kept = of_beams(now["scores"], same + ops.zeros_like(source))
            sums = ops.where(waits, ops.where(is_backup, 2 * _NONE, kept), sums)
            texts = of_beams(now["running"], source)  # (B, C, T)
            texts = ops.where(ops.arange(length, dtype="int32") == index, token[..., None], texts)
            ends = ops.zeros_like(token, "bool") | (index + 1 >= length)
            for stop in stops:
                ends = ops.logical_or(ends, token == stop)
            ends = ops.logical_and(ends, ops.logical_not(waits))
            # Only the best K candidates may finish; the others keep K beams running.
            count = ops.cast(ops.maximum(index + 1 - begins, 1), "float32") ** self.length_penalty
            fair = sums / count + ops.where(now["open"], 0.0, _NONE)
            is_new = ops.logical_and(ends, ops.logical_not(is_backup))
            fair = fair + ops.where(is_new, 0.0, _NONE)
            merged = ops.concatenate([now["ended_scores"], fair], axis=1)
            ended_scores, chosen = ops.top_k(merged, beams)
            ended = of_beams(ops.concatenate([now["ended"], texts], axis=1), chosen)
            is_ended = ops.concatenate([now["is_ended"], is_new], axis=1)
            is_ended = of_beams(is_ended, chosen)
            scores, chosen = ops.top_k(sums + ops.where(ends, _NONE, 0.0), beams)
            source = of_beams(source, chosen)
            best = scores[:, :1] / count
            worst = ops.where(is_ended, ops.min(ended_scores, axis=1, keepdims=True), _NONE)
            better = ops.any(best > worst, axis=1, keepdims=True)
            return (
                index + 1,
                keras.tree.map_structure(lambda x: joined(of_beams(split(x), source)), cache),
                of_beams(texts, chosen),
                scores,
                ended,
                ended_scores,
                is_ended,
                ops.logical_and(now["open"], ops.logical_or(waits, better)),
            )

        values = self.run_loop(
            lambda *values: ops.any(values[-1]),
            body,
            loop_vars=tuple(state.values()),
            maximum_iterations=length - index,
            model=model,
        )
        last = dict(zip(names, values))
        # If the prompt fills the row, no beam has finished.
        return ops.where(last["is_ended"][:, :1], last["ended"][:, 0], last["running"][:, 0])

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.pop("return_all_beams")
        forbidden = list(self.forbidden_token_ids)
        return {
            **config,
            "length_penalty": self.length_penalty,
            "forbidden_token_ids": forbidden,
        }


def forbidding(logits, token_ids):
    """Mask the logits (..., V) of the tokens `token_ids`."""
    if not token_ids:
        return logits
    return ops.where(_are_among(tuple(token_ids), logits.shape[-1]), _NONE, logits)


def leaving(logits, token_id):
    """Mask the logits (..., V) of all tokens except `token_id`."""
    return ops.where(_are_among((token_id,), logits.shape[-1]), logits, _NONE)


@functools.lru_cache(maxsize=16)
def _are_among(token_ids, size):
    """Return a bool array (V,): whether each id is in `token_ids`. Cached for all steps."""
    return np.isin(np.arange(size), token_ids)


def own_sampler(sampler):
    """Return a sampler by name, object or config.

    Raises:
        ValueError: for an unknown name, a sampler that needs more than logits, or a beam search
            with `return_all_beams`.
    """
    if isinstance(sampler, dict):  # The config in a saved file.
        sampler = keras.saving.deserialize_keras_object(sampler)
    if isinstance(sampler, str):
        check_choice("sampler", sampler, NAMES)
        sampler = keras_hub.samplers.get(sampler)
    others = (keras_hub.samplers.ContrastiveSampler, keras_hub.samplers.SpeculativeSampler)
    if not isinstance(sampler, keras_hub.samplers.Sampler) or isinstance(sampler, others):
        raise ValueError(
            f"generate() does not support sampler={sampler!r}; use one of {', '.join(NAMES)}, or "
            "an object of the matching class of keras_hub.samplers."
        )
    if type(sampler) is not keras_hub.samplers.BeamSampler:
        return sampler
    if sampler.return_all_beams:
        raise ValueError(
            "return_all_beams=True is not supported: generate() returns one text per prompt; "
            "omit it."
        )
    return BeamSampler(num_beams=sampler.num_beams, temperature=sampler.temperature)
