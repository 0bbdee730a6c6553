"""Type aliases for annotations, which type checkers and editors show."""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from kerasbert.checkpoints.checkpoint import Checkpoint
    from kerasbert.checkpoints.own import OwnPreset

#: An opened preset: the objects that `kerasbert.checkpoints` returns for it.
Found: TypeAlias = "OwnPreset | Checkpoint"
#: A path on this machine or, where the docstring says so, a URL.
AnyPath: TypeAlias = str | os.PathLike[str]
#: One path or glob pattern, or several.
Corpus: TypeAlias = AnyPath | Iterable[AnyPath]
#: A text, or several; pairs are tuples of two.
Texts: TypeAlias = str | bytes | Iterable[Any]
#: A tensor of the running backend, a `KerasTensor` or an array, or a nesting of these.
Tensor: TypeAlias = Any
#: What Keras accepts as the dtype of a layer: a name, a policy or its config.
Dtype: TypeAlias = Any
