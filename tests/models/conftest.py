"""What keeps the tests of models short."""

import gc

import keras

import kerasbert  # noqa: F401

# Keras collects garbage for each weight that it quantizes, through all that imports have left.
gc.collect()
gc.freeze()

if keras.backend.backend() == "jax":
    import jax

    # What a test compiles runs once.
    jax.config.update("jax_disable_most_optimizations", True)
