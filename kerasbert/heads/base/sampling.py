"""Order and endless batches of tasks in multi-task training."""

import keras
import numpy as np

# A task's steps are proportional to its batches to this power.
SAMPLING = {"size": 1.0, "sqrt": 0.5, "uniform": 0.0}


def plan_steps(sizes, sampling, steps, seed=0, epoch=0):
    """Draw the task of each step of an epoch.

    Each task gets its exact share of steps, rounded.

    Args:
        sizes: ints. Number of batches per task.
        sampling: a key of `SAMPLING`.
        steps: int.
        seed: int.
        epoch: int.

    >>> np.bincount(plan_steps([90, 10], "size", 100)).tolist()
    [90, 10]
    >>> np.bincount(plan_steps([90, 10], "sqrt", 100)).tolist()
    [75, 25]
    """
    generator = np.random.default_rng((seed, epoch))
    weights = np.array(sizes, "float64") ** SAMPLING[sampling]
    shares = steps * weights / weights.sum()
    counts = np.floor(shares + 1e-9).astype(int)
    rest = np.maximum(shares - counts, 0)
    missing = steps - counts.sum()
    if missing:
        chosen = generator.choice(len(sizes), missing, replace=False, p=rest / rest.sum())
        counts[chosen] += 1
    return generator.permutation(np.repeat(np.arange(len(sizes)), counts)).tolist()


def array_batches(arrays, batch_size, seed):
    """Yield batches of arrays (N, ...) endlessly, reshuffled in each pass."""
    generator = np.random.default_rng(seed)
    leaves = [leaf for leaf in keras.tree.flatten(arrays) if leaf is not None]
    while True:
        order = generator.permutation(len(leaves[0]))
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            yield keras.tree.map_structure(
                lambda leaf, rows=rows: None if leaf is None else leaf[rows], arrays
            )
