"""Experiment trackers of `finetune`: TensorBoard, MLflow and Weights & Biases.

Each training becomes a run of the tracker, with its parameters, its losses and scores per epoch and
its final scores. The search becomes a run with the scores of the saved model, the pictures and the
preset. Trackers are configured as usual, by `MLFLOW_TRACKING_URI`, `WANDB_PROJECT` and so on.
"""

import contextlib
import os

import keras

from kerasbert.backend.summaries import write_summaries


class Tracker:
    """Base class of trackers, which tracks nothing.

    Args:
        folder: the output folder of the search.
    """

    def __init__(self, folder):
        self.folder = folder

    @contextlib.contextmanager
    def run(self, name, parameters):
        """Context manager for a run, which yields the callbacks of `fit`."""
        yield []

    def scores(self, scores):
        """Record the final scores of the run, a dict of name to float."""

    def artifacts(self, pictures, model):
        """Record pictures (paths of PNG files) and a preset (path of its folder)."""


class TensorBoardTracker(Tracker):
    """Writes the logs of TensorBoard to a subfolder of the output folder."""

    _place = None  # Folder of the current run.

    @contextlib.contextmanager
    def run(self, name, parameters):
        outer, self._place = self._place, os.path.join(self.folder, "tensorboard", name)
        rows = [f"| {key} | {value} |" for key, value in parameters.items()]
        table = "\n".join(["| name | value |", "|---|---|", *rows])
        write_summaries(self._place, texts={"parameters": table})
        yield [keras.callbacks.TensorBoard(self._place, write_graph=False)]
        self._place = outer

    def scores(self, scores):
        write_summaries(self._place, {f"final/{name}": value for name, value in scores.items()})

    def artifacts(self, pictures, model):
        write_summaries(self._place, texts={"model": model}, pictures=pictures)


class _EpochLogs(keras.callbacks.Callback):
    """Callback that passes the logs of each epoch to a function of `(logs, epoch)`."""

    def __init__(self, log):
        super().__init__()
        self._log = log

    def on_epoch_end(self, epoch, logs=None):
        self._log({name: float(value) for name, value in (logs or {}).items()}, epoch + 1)


class MlflowTracker(Tracker):
    """Logs to MLflow; the trainings are child runs of the search."""

    @contextlib.contextmanager
    def run(self, name, parameters):
        import mlflow

        with mlflow.start_run(run_name=name, nested=mlflow.active_run() is not None):
            mlflow.log_params(parameters)
            yield [_EpochLogs(lambda logs, epoch: mlflow.log_metrics(logs, step=epoch))]

    def scores(self, scores):
        import mlflow

        mlflow.log_metrics(scores)

    def artifacts(self, pictures, model):
        import mlflow

        for path in pictures:
            mlflow.log_artifact(path, "pictures")
        mlflow.log_artifacts(model, "model")


class WandbTracker(Tracker):
    """Logs to Weights & Biases; the runs of a search are a group."""

    _run = None  # The current run.

    @contextlib.contextmanager
    def run(self, name, parameters):
        import wandb

        outer, group = self._run, os.path.basename(self.folder)
        self._run = wandb.init(
            name=f"{group} {name}", group=group, config=parameters, reinit="create_new"
        )
        code = 1
        try:
            yield [_EpochLogs(lambda logs, epoch: self._run.log(logs, step=epoch))]
            code = 0
        finally:
            self._run.finish(exit_code=code)
            self._run = outer

    def scores(self, scores):
        self._run.summary.update(scores)

    def artifacts(self, pictures, model):
        import wandb

        self._run.log({os.path.basename(path): wandb.Image(path) for path in pictures})
        artifact = wandb.Artifact(f"model-{self._run.id}", type="model")
        artifact.add_dir(model)
        self._run.log_artifact(artifact)


_TRACKERS = {
    None: Tracker,
    "tensorboard": TensorBoardTracker,
    "mlflow": MlflowTracker,
    "wandb": WandbTracker,
}


def tracker_of(name, folder):
    """Return the tracker of a name in `finetune_settings.TRACKERS`; `None` tracks nothing."""
    return _TRACKERS[name](folder)
