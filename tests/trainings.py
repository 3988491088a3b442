"""Trainings as users start them, in processes of their own, and whether two ended alike."""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
TWO = [*TORCHRUN, "--standalone", "--nproc-per-node", "2"]


def command(out: Path, *options: str) -> list[str]:
    return ["-m", "surebound", "train", "--config", str(out.parent / "run.toml"), "--out", str(out), *options]


def write_config(folder: Path, *, epochs: int) -> None:
    text = (
        'method = "ibp-r"\neps = 0.05\n[data]\nname = "digits"\nbatch = 50\n[network]\nname = "conv-small"\n'
        f"[schedule]\nepochs = {epochs}\nmixing = {epochs // 2}\n[validation]\nimages = 20\n"
        "[run]\ncheckpoint_every = 0.2\n"
    )
    (folder / "run.toml").write_text(text)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "weights.safetensors")


def same(one: Path, two: Path) -> bool:
    """Whether two runs ended with the same weights, bit for bit."""
    a, b = weights(one), weights(two)
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
