"""What Keras does not pass on to PyTorch: bias in products, random states, processes."""


def addmm(inputs, kernel, bias):
    """`inputs @ kernel + bias` (R, U), from rows (R, D), in one operation."""
    import torch

    return torch.addmm(bias, inputs, kernel)


def train_in_processes(model, **kwargs):
    """Let `fit` average the gradients of all processes, by `DistributedDataParallel`."""
    import torch

    if not torch.distributed.is_initialized():
        raise ValueError(
            "There are no other processes to train with; start the script with torchrun, and call "
            "torch.distributed.init_process_group() first."
        )
    # Keras Hub lets PyTorch know the weights with the first step, which is too late.
    model._track_variables()
    # Weights that a task does not use, such as the pooler's, get no gradient.
    kwargs = {"find_unused_parameters": True, **kwargs}
    forward = torch.nn.parallel.DistributedDataParallel(model, **kwargs)

    class Through:
        """The model, called through what averages its gradients."""

        def __call__(self, *args, **kwargs):
            return forward(*args, **kwargs)

        def __getattr__(self, name):
            return getattr(model, name)

    step = type(model).train_step
    model.train_step = lambda data: step(Through(), data)


def random_states():
    """The states of the global random generators, as arrays by name."""
    import torch

    states = {"random/cpu": torch.get_rng_state().numpy()}
    if torch.cuda.is_available():
        for number, state in enumerate(torch.cuda.get_rng_state_all()):
            states[f"random/cuda_{number}"] = state.numpy()
    return states


def set_random_states(states):
    """Put back what `random_states` returned."""
    import torch

    for name, state in states.items():
        device = name.partition("/")[2]
        state = torch.from_numpy(state.copy())
        if device == "cpu":
            torch.set_rng_state(state)
        else:
            torch.cuda.set_rng_state(state, int(device.removeprefix("cuda_")))
