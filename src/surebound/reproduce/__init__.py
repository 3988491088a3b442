"""The paper's experiments: train, certify and tabulate, at a size that fits the machine, resumable at any moment."""
