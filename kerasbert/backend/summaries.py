"""Event files of TensorBoard."""

import os

from kerasbert.backend.tensorflow import tf


def write_summaries(folder, scalars=None, texts=None, pictures=()):
    """Add an event file of TensorBoard to a folder. Needs TensorFlow.

    Args:
        folder: string.
        scalars: dict of name to float.
        texts: dict of name to Markdown.
        pictures: paths of PNG files; their names are the names of the images.
    """
    writer = tf.summary.create_file_writer(folder)
    with writer.as_default(step=0):
        for name, value in (scalars or {}).items():
            tf.summary.scalar(name, value)
        for name, text in (texts or {}).items():
            tf.summary.text(name, text)
        for path in pictures:
            image = tf.io.decode_png(tf.io.read_file(path), channels=3)
            tf.summary.image(os.path.basename(path), image[None])
    writer.close()
