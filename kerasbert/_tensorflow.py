"""TensorFlow, imported late: encoders, `fit` on arrays and safetensors need none of it."""


def tf_modules(needed_by):
    """Return the modules `(tensorflow, tensorflow_text)`.

    Args:
        needed_by: string. What needs them, for the error.

    Raises:
        ImportError: when either is not installed.
    """
    try:
        import tensorflow
        import tensorflow_text
    except ImportError as error:
        raise ImportError(
            f"{needed_by} needs TensorFlow and TensorFlow Text on every Keras backend; "
            "run `pip install tensorflow tensorflow-text`, or pass arrays of token ids."
        ) from error
    return tensorflow, tensorflow_text
