"""Pre-training, fine-tuning with grid search, `advise`, evaluation, checkpoints and logs."""
