"""Serving of `BertMultipleChoice`: the most probable choice. N prompts, C choices."""

import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.heads.base.program import Program
from kerasbert.heads.base.served import PROSE, SHORT, Served, are_texts, spec

_CHOOSE = '''\
@answers("tuples of a prompt and a list of choices", is_choice)
def answer(examples):
    """Return the choices' probabilities for each tuple of a prompt and a list of choices."""
    return [choose(prompt, choices) for prompt, choices in examples]


def choose(prompt, choices):
    """Return the probability of each choice to continue the prompt."""
    rows = tokenizer.encode_batch([(prompt, choice) for choice in choices])
    logits = run({name: x[None] for name, x in packed(rows).items()})["logits"][0]
    odds = np.exp(logits - logits.max())
    return (odds / odds.sum()).tolist()
'''


class ServedChooser(Served):
    """SavedModel signatures of `BertMultipleChoice`."""

    columns = ("prompt", "choices")

    def column_specs(self):
        return {"prompt": spec("prompt"), "choices": spec("choices", 2)}

    def program(self):
        return Program(_CHOOSE, '"A prompt" "a choice" "another"', "[(sys.argv[1], sys.argv[2:])]")

    def pack(self, prompt, choices):
        return self.features_in_graph(self.preprocessor((prompt, choices)))

    def answer(self, prompt, choices):
        scores = tf.nn.softmax(self.graph(self.pack(prompt, choices))["logits"])
        # Add back columns of choices that are padding in all rows.
        missing = tf.shape(choices)[1] - tf.shape(scores)[1]
        scores = tf.pad(scores, [[0, 0], [0, missing]])
        index = tf.argmax(scores, axis=-1, output_type=tf.int32)
        return {
            "choice": tf.gather(choices, index, batch_dims=1),
            "index": index,
            "score": tf.reduce_max(scores, axis=-1),
            "scores": scores,
        }

    def probes(self):
        prompts = [*SHORT[:4], PROSE]
        choices = [["noon?", "x"], SHORT[2:6], ["北京", "", "b"], ["a"], ["one", "two", PROSE]]
        most = max(map(len, choices))
        choices = [row + [""] * (most - len(row)) for row in choices]
        return [("serving_default", {"prompt": prompts, "choices": choices})]

    def expected(self, signature, inputs):
        prompts, rows = inputs["prompt"], inputs["choices"]
        rows = [row[: 1 + max(i for i, x in enumerate(row) if x)] for row in rows]
        found = self.model.choose(prompts, rows)
        most = len(inputs["choices"][0])
        columns = {name: [row[name] for row in found] for name in ("choice", "index", "score")}
        columns["scores"] = [row["scores"] + [0.0] * (most - len(row["scores"])) for row in found]
        ranked = np.sort(columns["scores"], axis=-1)
        return {**columns, "clear": ranked[:, -1] - ranked[:, -2] > self.margin}

    def warmup_inputs(self, item):
        if not isinstance(item, (tuple, list)) or len(item) != 2 or not isinstance(item[0], str):
            return None
        choices = item[1]
        if not are_texts(choices) or not choices or not choices[-1]:
            return None
        return "serving_default", {"prompt": [item[0]], "choices": [list(choices)]}

    def wanted_item(self):
        return "a tuple of a prompt and a list of choices whose last choice is not empty"

    def example(self):
        return {"prompt": "Lunch at", "choices": ["noon?", "a prize?"]}
