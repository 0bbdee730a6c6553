"""Phases of a pre-training, each with one sequence length, and its warmup steps."""

from collections import namedtuple

from kerasbert.base.errors import check_whole

Phase = namedtuple("Phase", ["sequence_length", "steps", "batch_size"])


def checked_phases(phases, accumulate):
    """Return a list of `Phase`, or raise for invalid phases.

    Args:
        phases: list of `(sequence_length, steps, batch_size)`.
        accumulate: number of parts of each batch.

    >>> checked_phases([(128, 900, 32)], 1)
    [Phase(sequence_length=128, steps=900, batch_size=32)]
    """
    for number, phase in enumerate(phases):
        if len(phase) != 3:
            raise ValueError(
                f"phases[{number}]={phase!r} must be (sequence_length, steps, batch_size), "
                "such as (128, 9000, 256)."
            )
        for name, value in zip(("sequence_length", "steps", "batch_size"), phase):
            check_whole(f"phases[{number}]: {name}", value)
        if phase[2] % accumulate:
            raise ValueError(
                f"accumulate={accumulate} does not divide the batch_size {phase[2]} of "
                f"phases[{number}]; an update is computed in that many equal parts."
            )
    if not phases:
        raise ValueError("phases is empty; pass at least one (sequence_length, steps, batch_size).")
    return [Phase(*phase) for phase in phases]


def warmup_of(steps):
    """Return the number of warmup steps: a hundredth of the steps, as for BERT.

    At least 1 / (1 - beta_2) = 1,000, or a fifth of the steps.

    Ma and Yarats 2021, arXiv 1910.04209, recommend 2 / (1 - beta_2) for Adam.

    >>> warmup_of(1_000_000), warmup_of(20_000), warmup_of(100)
    (10000, 1000, 20)
    """
    return max(steps // 100, min(steps // 5, 1000))
