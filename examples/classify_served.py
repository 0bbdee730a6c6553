"""Classify messages with a SavedModel, using only TensorFlow and TensorFlow Text, as a server does.

    python examples/classify_served.py spam_model/1 "You won! Text WIN to 80086" "See you at 8?"

Prints one line per text: the label, its probability and the text.
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
import tensorflow_text  # noqa: F401  It registers the ops of the graph.

if len(sys.argv) < 3:
    sys.exit(f"Usage: python {sys.argv[0]} SAVED_MODEL TEXT [TEXT ...]")
path, *texts = sys.argv[1:]
if not os.path.isfile(os.path.join(path, "saved_model.pb")):
    sys.exit(f"'{path}' is not a SavedModel; name the folder of one version, such as spam_model/1.")

classify = tf.saved_model.load(path).signatures["serving_default"]
answers = classify(text=tf.constant(texts))
for text, label, score in zip(texts, answers["label"].numpy(), answers["score"].numpy()):
    print(f"{label.decode():>8}  {score:.4f}  {text}")
