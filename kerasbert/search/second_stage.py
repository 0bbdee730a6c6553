"""Rerankers and readers, which read a query together with its hits."""


def rerank(reranker, query, hits):
    """Return hits in the reranker's order, with its scores.

    A hit's cosine becomes `vector_score`; hybrid hits have own scores.
    """
    if not hits:
        return hits
    ranked = reranker.rank(query, [hit["text"] for hit in hits])
    ranked = sorted(ranked, key=lambda one: -one["score"])
    result = []
    for one in ranked:
        hit = dict(hits[one["corpus_id"]])
        if "keyword_score" not in hit:
            hit["vector_score"] = hit["score"]
        result.append({**hit, "score": float(one["score"])})
    return result


def add_answers(reader, queries, results, settings):
    """Add a reader's best answer to each hit, as `answer`.

    Args:
        reader: a `BertQuestionAnswering`.
        queries: list of Q strings.
        results: list of Q lists of hits.
        settings: dict. Arguments of the reader's `answer`.
    """
    nothing = {"answer": "", "start": None, "end": None, "score": 0.0, "null_score": 0.0}
    pairs = [(query, hit) for query, hits in zip(queries, results) for hit in hits]
    for _, hit in pairs:
        hit["answer"] = dict(nothing)
    pairs = [(query, hit) for query, hit in pairs if query.strip() and hit["text"].strip()]
    if not pairs:
        return
    asked = [query for query, _ in pairs], [hit["text"] for _, hit in pairs]
    for (_, hit), answers in zip(pairs, reader.answer(*asked, **settings)):
        if answers:
            hit["answer"] = answers[0]
