"""One file per training method; each has the loss's formula, its reference and its hyper-parameters."""
