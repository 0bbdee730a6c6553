"""Type aliases for annotations. Type checkers and editors read this module; nothing imports it."""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from kerasbert.checkpoints.checkpoint import Checkpoint
    from kerasbert.checkpoints.own import OwnPreset

#: The source that `kerasbert.checkpoints` opens for a preset.
Found: TypeAlias = "OwnPreset | Checkpoint"
#: A path on this machine or, where the docstring says so, a URL.
AnyPath: TypeAlias = str | os.PathLike[str]
#: One path or pattern, or several.
Corpus: TypeAlias = AnyPath | Iterable[AnyPath]
#: A text, or several; pairs are tuples of two.
Texts: TypeAlias = str | bytes | Iterable[Any]
#: A tensor of the running backend, a `KerasTensor` or an array, or a nesting of these.
Tensor: TypeAlias = Any
#: What Keras accepts as the dtype of a layer: a name, a policy or its config.
Dtype: TypeAlias = Any
