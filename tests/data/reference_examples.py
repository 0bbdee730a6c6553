"""BERT's examples as its paper and released code describe them, in plain Python, for comparison.

Documents are lists of sentences, and these lists of tokens of any type.
"""

from dataclasses import dataclass


@dataclass
class Pair:
    a: list
    b: list
    is_random: bool
    whole_a: int  # tokens before truncation
    whole_b: int


def pairs_of_document(documents, number, sequence_length, random, short_sequence_rate=0.1):
    """Yield the pairs of a document."""
    document = documents[number]
    most = sequence_length - 3
    aim = random.randint(2, most) if random.random() < short_sequence_rate else most
    gathered, place = [], 0
    while place < len(document):
        gathered.append(document[place])
        is_last = place == len(document) - 1
        if is_last or sum(map(len, gathered)) >= aim:
            cut = random.randint(1, len(gathered) - 1) if len(gathered) > 1 else 1
            a = [token for sentence in gathered[:cut] for token in sentence]
            b = [token for sentence in gathered[cut:] for token in sentence]
            is_random = len(gathered) == 1 or random.random() < 0.5
            if is_random:
                b = random_text(documents, number, aim - len(a), random)
                # Unused sentences are used again.
                place -= len(gathered) - cut
            whole = len(a), len(b)
            truncate(a, b, most, random)
            yield Pair(a, b, is_random, *whole)
            gathered = []
        place += 1


def random_text(documents, number, wanted, random):
    """Return sentences of a random document, from a random sentence on, with `wanted` tokens."""
    for _ in range(10):
        other = random.randint(0, len(documents) - 1)
        if other != number:
            break
    document, text = documents[other], []
    for sentence in document[random.randint(0, len(document) - 1) :]:
        text += sentence
        if len(text) >= wanted:
            break
    return text


def truncate(a, b, most, random):
    while len(a) + len(b) > most:
        longer = a if len(a) > len(b) else b
        longer.pop(0 if random.random() < 0.5 else -1)


def masked(tokens, special, mask, vocabulary, most, random, rate=0.15):
    """Mask tokens: return the row as the model sees it, and the masked positions and tokens."""
    free = [place for place, token in enumerate(tokens) if token not in special]
    random.shuffle(free)
    count = min(most, max(1, round(len(tokens) * rate)))
    seen, places = list(tokens), sorted(free[:count])
    for place in places:
        if random.random() < 0.8:
            seen[place] = mask
        elif random.random() >= 0.5:
            seen[place] = random.choice(vocabulary)
    return seen, places, [tokens[place] for place in places]


def examples(
    documents, sequence_length, most_predictions, cls, sep, mask, vocabulary, random, short=0.1
):
    """Yield `(pair, tokens, segments, places, hidden)` of all documents."""
    for number in range(len(documents)):
        for pair in pairs_of_document(documents, number, sequence_length, random, short):
            tokens = [cls, *pair.a, sep, *pair.b, sep]
            segments = [0] * (len(pair.a) + 2) + [1] * (len(pair.b) + 1)
            seen, places, hidden = masked(
                tokens, {cls, sep}, mask, vocabulary, most_predictions, random
            )
            yield pair, seen, segments, places, hidden


def serialized(tokens, segments, places, hidden, is_random, sequence_length, most_predictions):
    """Return a `tf.train.Example`, as the released code writes it."""
    import tensorflow as tf

    def padded(values, size):
        return [*values, *[0] * (size - len(values))]

    ints = {
        "input_ids": padded(tokens, sequence_length),
        "input_mask": padded([1] * len(tokens), sequence_length),
        "segment_ids": padded(segments, sequence_length),
        "masked_lm_positions": padded(places, most_predictions),
        "masked_lm_ids": padded(hidden, most_predictions),
        "next_sentence_labels": [int(is_random)],
    }
    features = {
        name: tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        for name, values in ints.items()
    }
    weights = padded([1.0] * len(places), most_predictions)
    features["masked_lm_weights"] = tf.train.Feature(float_list=tf.train.FloatList(value=weights))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
