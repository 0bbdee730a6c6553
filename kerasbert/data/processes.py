"""An ordered parallel map over worker processes, with few tasks in memory.

`concurrent.futures` reads all tasks at once, and waits forever for a process that is killed while
it receives a large argument (Python 3.11).
"""

import collections
import contextlib
import itertools
import multiprocessing
import multiprocessing.connection
import os
import pickle

from kerasbert import backend
from kerasbert.backend.tensorflow import tf
from kerasbert.base.process import run_silently, silent_tensorflow
from kerasbert.base.system import cores

# For up to this many blocks, starting processes takes longer.
FEW = 16


def map_blocks(function, tasks, workers, left):
    """Yield `(key, function(*arguments))` for each task, in order, in processes if that is faster.

    Args:
        function, tasks: as for `map_in_processes`.
        workers: int. 1 is this process; `None` means one per core, or this one for few tasks.
        left: function of the first key that returns an estimate of the number of tasks.
    """
    tasks = iter(tasks)
    first = list(itertools.islice(tasks, 1))
    tasks = itertools.chain(first, tasks)
    if workers is None:
        workers = cores() if first and left(first[0][0]) > FEW else 1
    if workers == 1:
        for key, arguments in tasks:
            yield key, function(*arguments)
        return
    with contextlib.closing(map_in_processes(function, tasks, workers)) as results:
        yield from results


def map_in_processes(function, tasks, workers):
    """Yield `(key, function(*arguments))` for each task, in order.

    Args:
        function: picklable function; if it uses TensorFlow, it gets one core and no GPU.
        tasks: iterable of `(key, arguments)`; the keys stay in this process.
        workers: int.

    Raises:
        RuntimeError: if a process ends, for example because the system killed it.
        Exception: any exception that `function` raises.
    """
    # TensorFlow's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    tasks = iter(tasks)
    processes, busy, idle = [], {}, []
    results, waiting = {}, collections.deque()  # results by task number; keys of pending tasks
    sent = yielded = 0
    try:
        for _ in range(workers):
            pipe, theirs = context.Pipe()
            process = context.Process(
                target=run_silently,
                args=(__name__, "_serve", theirs, pickle.dumps(function)),
                daemon=True,
            )
            process.start()
            theirs.close()
            processes.append(process)
            busy[pipe] = None  # until the process has started
        while True:
            # Keep all processes busy while the first result is pending.
            while idle and tasks is not None and len(waiting) < 3 * workers:
                key, arguments = next(tasks, (None, None))
                if arguments is None:
                    tasks = None
                    break
                pipe = idle.pop()
                pipe.send(arguments)
                waiting.append(key)
                busy[pipe] = sent
                sent += 1
            while yielded in results:
                error, result = results.pop(yielded)
                if error is not None:
                    raise error
                yield waiting.popleft(), result
                yielded += 1
            if tasks is None and not waiting:
                return
            if not busy:  # No task is running, so all results have arrived.
                continue
            for pipe in multiprocessing.connection.wait(list(busy)):
                message = pipe.recv()
                number = busy.pop(pipe)
                if number is not None:
                    results[number] = message
                idle.append(pipe)
    except (EOFError, ConnectionError):
        raise RuntimeError(
            "A worker process ended: it was killed, perhaps for lack of memory, or could not "
            "start. A script must call this below `if __name__ == '__main__':`; or pass workers=1."
        ) from None
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()
        for pipe in [*busy, *idle]:
            pipe.close()


def _serve(pipe, function):
    """Run a worker process: send a result or error per task."""
    # One thread, for one process per core, and no GPU, which training may need.
    os.environ.setdefault("RAYON_NUM_THREADS", "1")  # for the library `tokenizers`
    if backend.trains_in_graphs():
        with silent_tensorflow(), contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(1)
            tf.config.threading.set_inter_op_parallelism_threads(1)
            tf.config.set_visible_devices([], "GPU")
    # Unpickling may create tensors, so devices are set before.
    function = pickle.loads(function)
    pipe.send(None)
    with contextlib.suppress(EOFError):
        while True:
            arguments = pipe.recv()
            try:
                message = None, function(*arguments)
            except Exception as error:
                message = error, None
            pipe.send(message)
