"""Networks that go where their files are not."""

import pickle
from pathlib import Path

import numpy as np
import onnx
import pytest
from classifiers import small_digits, write

from surebound.errors import NetworkError
from surebound.load.onnx import load_model
from surebound.load.onnx_file import fingerprint
from surebound.load.portable import PortableNetwork


@pytest.mark.parametrize("outside", [False, True], ids=["one file", "weights in another"])
def test_a_network_is_read_where_its_files_are_not(tmp_path: Path, outside: bool) -> None:
    file = write(small_digits(), tmp_path)
    if outside:
        onnx.save(onnx.load(str(file)), str(file), save_as_external_data=True, location="w.bin", size_threshold=0)
    x = np.random.default_rng(0).random((3, 64), dtype=np.float32)
    here = PortableNetwork(file, pack=True)
    expected = here.model.replay(x)
    travelled: PortableNetwork = pickle.loads(pickle.dumps(here))
    for path in tmp_path.iterdir():
        path.unlink()
    assert (travelled.model.replay(x) == expected).all()
    with travelled.file() as copy:
        assert copy.name == file.name and copy.exists()
    assert not copy.exists()


def test_a_network_stays_where_its_file_is(tmp_path: Path) -> None:
    file = write(small_digits(), tmp_path)
    near = PortableNetwork(file)
    assert len(pickle.dumps(near)) < 1000
    with pickle.loads(pickle.dumps(near)).file() as path:
        assert path == file


@pytest.mark.parametrize("outside", [False, True], ids=["one file", "weights in another"])
def test_a_network_that_takes_its_place_is_refused(tmp_path: Path, outside: bool) -> None:
    """What it shows would be stored as shown by the first."""
    file = write(small_digits(), tmp_path)
    if outside:
        onnx.save(onnx.load(str(file)), str(file), save_as_external_data=True, location="w.bin", size_threshold=0)
    sha256, model = fingerprint(file), load_model(file)
    sent = pickle.dumps(PortableNetwork(file, model=model))
    assert pickle.loads(sent).model.network.outputs == 10
    weights = tmp_path / "w.bin" if outside else file
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    message = "has changed since it was first read; expected it to stay as it is"
    with pytest.raises(NetworkError, match=message):
        _ = pickle.loads(sent).model
    with pytest.raises(NetworkError, match=message):
        PortableNetwork(file, sha256=sha256, model=model)
