"""Graphs of a model's steps, without Keras' Python code."""

import collections
import threading


class Graphs:
    """Cache of a model's compiled step, by recurring shape.

    Args:
        often: number of calls with the same shapes before the first graph; later ones need a
            quarter.
        most: maximum number of graphs.
    """

    def __init__(self, often, most=64):
        self._often, self._most = often, most
        self._counts = collections.Counter()
        self._made, self._of_shapes = [], {}
        self._lock = threading.Lock()

    def of(self, shapes, make, fits=None):
        """Return the graph for these shapes, or `None` if they are too rare.

        Args:
            shapes: hashable. The key of the shapes.
            make: function that returns a new graph.
            fits: function of a graph: is it valid for these shapes? With it, all calls are counted
                together.
        """
        if shapes in self._of_shapes:
            return self._of_shapes[shapes]
        with self._lock:
            graph = next(filter(fits, self._made), None) if fits else None
            if graph is None and not self._is_often(None if fits else shapes):
                return None
            if graph is None:
                graph = make()
                self._made.append(graph)
            self._of_shapes[shapes] = graph
        return graph

    def _is_often(self, shapes):
        if len(self._made) >= self._most:
            return False
        self._counts[shapes] += 1
        often = max(1, self._often // 4) if self._made else self._often
        return self._counts[shapes] % often == 0


def beside_prediction(model, make):
    """Return the result of `make()` for a model, cached until the next `compile`."""
    made_for, made = model.__dict__.get("_beside_prediction", (None, None))
    model.make_predict_function()
    if made_for is not model.predict_function:
        made = make()
        model.__dict__["_beside_prediction"] = model.predict_function, made
    return made
