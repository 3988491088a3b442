"""The trained networks that come with the repository."""

import hashlib
import json
import re
from pathlib import Path

import pytest
from commands import surebound

from surebound.load.onnx import load_onnx

FOLDER = Path(__file__).parents[1] / "models"
NETWORKS = sorted(FOLDER.glob("*.onnx"))


def test_they_are_small_and_listed_with_their_hashes() -> None:
    listed = dict(re.findall(r"^([0-9a-f]{64})  (\S+)$", (FOLDER / "README.md").read_text(), re.MULTILINE))
    found = {hashlib.sha256(path.read_bytes()).hexdigest(): path.name for path in NETWORKS}
    assert found and found == listed
    assert sum(path.stat().st_size for path in NETWORKS) <= 10 * 10**6


@pytest.mark.parametrize("path", NETWORKS, ids=lambda path: path.stem)
def test_they_are_the_papers(path: Path) -> None:
    """ReLUs: table 3 of the paper, whose second number has two digits swapped."""
    network = load_onnx(path)
    relus = sum(network.width(k) for k in range(len(network.layers)))
    assert relus == {"2-255": 49_402, "8-255": 16_634}["-".join(path.stem.split("-")[1:3])]


@pytest.mark.slow
@pytest.mark.parametrize("path", NETWORKS, ids=lambda path: path.stem)
def test_an_image_is_certified(path: Path, shared: Path, tmp_path: Path) -> None:
    eps = "/".join(path.stem.split("-")[1:3])
    words = ["certify", str(path), "--dataset", "cifar10", "--eps", eps, "--indices", "1", "--quiet"]
    files = ["--store", tmp_path / "s.sqlite", "--json", tmp_path / "r.json"]
    done = surebound(*words, "--data-dir", shared / "data", *files)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "r.json").read_text())["verified"] == 1.0
