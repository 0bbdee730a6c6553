"""Tensors of a Hugging Face checkpoint, by its family's names."""

from kerasbert.checkpoints.checkpoint import TensorFiles

# Buffers, which are not weights.
_BUFFERS = (
    "embeddings.position_ids",
    "embeddings.token_type_ids",
    "rotary_emb.",
    # Marian's sinusoidal position tables.
    "coder.embed_positions.",
    "pos_emb.inv_freq",
    # GPT-2's causal masks.
    ".attn.bias",
    ".attn.masked_bias",
)


class HuggingFaceTensors(TensorFiles):
    """Tensors by name, without the model's prefix ("bert.", "roberta.", "model.", ...)."""

    def __init__(self, directory, table, tied, constants):
        super().__init__(directory)
        self.split_heads = table.split_heads
        self.ignored = *_BUFFERS, *table.unused
        # Name of a weight to the table whose first row is added to its rows.
        self.constants = constants
        self.anchor = table.encoder["token_embedding"] + ".weight"
        # An untied decoder has its own bias, so the head's is unused.
        self.unused = None
        if not tied and table.decoder:
            output = table.of_head("masked_lm")["mlm_head"]
            self.unused = f"{output}.bias", f"{table.decoder}.bias"

    def _open(self):
        index = super()._open()
        for name, other in self.constants.items():
            if other not in index:
                raise ValueError(
                    f"The weights of '{self.directory}' have no '{other}', which its config.json "
                    "asks for; they do not belong together."
                )
            self.constants[name] = other, *index.pop(other)
        return index

    def rename(self, names):
        found = [name for name in names if name == self.anchor or name.endswith("." + self.anchor)]
        if len(found) != 1:
            raise ValueError(
                f"'{self.directory}' has {len(found)} tensors named '...{self.anchor}', expected "
                "one; it is not an encoder of the family that its config.json names."
            )
        prefix = found[0].removesuffix(self.anchor)
        renamed = {}
        for name in names:
            if any(part in name for part in self.ignored):
                continue
            # Old checkpoints name norms' weights gamma and beta.
            ours = name.removeprefix(prefix)
            for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
                if ours.endswith(old):
                    ours = ours.removesuffix(old) + new
            # A matrix with an axis for heads is a plain parameter, so its name lacks ".weight".
            renamed[f"{ours}.weight" if ours.endswith(tuple(self.split_heads)) else ours] = name
        if self.unused is not None and self.unused[0] in renamed:
            # Two equal biases are stored once, under the name of the head's.
            renamed.setdefault(self.unused[1], renamed.pop(self.unused[0]))
        return renamed

    def _is_into_heads(self, name):
        """Return whether a matrix projects into heads; `None` without an axis for them."""
        ends = (into for end, into in self.split_heads.items() if name.endswith(f"{end}.weight"))
        return next(ends, None)

    def __getitem__(self, name):
        value, into = super().__getitem__(name), self._is_into_heads(name)
        if name in self.constants:
            row = self._array(*self.constants[name])[0]
            return value.astype("float32") + row.astype("float32")
        if into is None or value.ndim != 3:
            return value
        whole = value.reshape(len(value), -1)
        return whole.T if into else whole

    def shape(self, name):
        shape, into = super().shape(name), self._is_into_heads(name)
        if into is None or len(shape) != 3:
            return shape
        whole = (shape[0], shape[1] * shape[2])
        return whole[::-1] if into else whole
