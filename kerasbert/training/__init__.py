"""The loops: fine-tuning with its search, pretraining, evaluation, checkpoints and recording."""
