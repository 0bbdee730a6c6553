"""What Keras does not pass on to PyTorch: a product that adds its bias, and random states."""


def addmm(inputs, kernel, bias):
    """`inputs @ kernel + bias` (R, U), from rows (R, D), in one operation."""
    import torch

    return torch.addmm(bias, inputs, kernel)


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


def distributed_data_parallel(model, **kwargs):
    import torch
    return torch.nn.parallel.DistributedDataParallel(model, **kwargs)
