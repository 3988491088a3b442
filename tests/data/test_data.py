"""Data sets read from real files, from small files made here in each layout, and from what is damaged or hostile."""

import gzip
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from surebound.data import load_dataset
from surebound.data.dataset import Augmentation, Images
from surebound.data.own import dataset_from_folder, dataset_from_tensors
from surebound.errors import MissingFileError, UsageError

BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
OFFICIAL = "https://www.cs.toronto.edu/~kriz/"


@pytest.fixture(autouse=True)
def _no_data_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SUREBOUND_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def real(request: pytest.FixtureRequest) -> Path:
    folder = Path(os.environ.get("SUREBOUND_DATA") or request.getfixturevalue("shared") / "data")
    if not (folder / "cifar10").is_dir() or not (folder / "mnist").is_dir():
        pytest.skip(f"needs CIFAR-10 and MNIST in {folder}, or elsewhere by SUREBOUND_DATA")
    return folder


Batches = list[tuple[np.ndarray, np.ndarray]]  # pixels (n, 3072) and labels (n,), for each of BATCHES


def _batches(rng: np.random.Generator) -> Batches:
    return [
        (rng.integers(0, 256, (count, 3072), dtype=np.uint8), rng.integers(0, 10, count, dtype=np.uint8))
        for count in (2, 1, 3, 1, 2, 4)
    ]


def _write_binary(folder: Path, batches: Batches) -> None:
    folder = folder / "cifar10/cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name, (pixels, labels) in zip(BATCHES, batches, strict=True):
        (folder / f"{name}.bin").write_bytes(np.concatenate([labels[:, None], pixels], axis=1).tobytes())


def _python3(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    return pickle.dumps({b"labels": labels.tolist(), b"data": pixels, b"batch_label": b"one of 5"}, protocol=2)


def _python2(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    """Byte for byte as Python 2 wrote the official files: byte strings (U, T), no memo."""
    numbers = b"".join(b"K" + bytes([label]) for label in labels)
    shape = b"M" + struct.pack("<H", len(pixels)) + b"M" + struct.pack("<H", 3072) + b"\x86"
    reconstruct = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    content = b"T" + struct.pack("<i", pixels.size) + pixels.tobytes()
    state = b"(K\x01" + shape + dtype + b"\x89" + content + b"tb"
    return b"\x80\x02}(U\x06labels](" + numbers + b"eU\x04data" + reconstruct + state + b"u."


def _write_pickles(folder: Path, batches: Batches, dump: Callable[..., bytes]) -> Path:
    folder = folder / "cifar10/cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name, (pixels, labels) in zip(BATCHES, batches, strict=True):
        (folder / name).write_bytes(dump(pixels, labels))
    return folder


def _idx(array: np.ndarray) -> bytes:
    return struct.pack(f">{1 + array.ndim}i", 0x0800 + array.ndim, *array.shape) + array.tobytes()


def _write_mnist(folder: Path, *, zipped: bool = True) -> tuple[np.ndarray, np.ndarray]:
    (folder / "mnist").mkdir(parents=True)
    pixels, labels = np.arange(3 * 784, dtype=np.uint8).reshape(3, 28, 28), np.array([7, 0, 9], np.uint8)
    for prefix in ("train", "t10k"):
        for name, array in (("images-idx3", pixels), ("labels-idx1", labels)):
            path = folder / f"mnist/{prefix}-{name}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(_idx(array)) if zipped else _idx(array))
    return pixels, labels


@pytest.mark.slow
def test_real_cifar10(real: Path) -> None:
    data = load_dataset("cifar10", real)
    assert (len(data.train), len(data.test), data.shape) == (50_000, 10_000, (3, 32, 32))
    assert data.train.pixels.dtype == torch.uint8 and data.train.pixels.is_contiguous()
    assert torch.bincount(data.train.labels).tolist() == [5000] * 10
    assert torch.bincount(data.test.labels).tolist() == [1000] * 10
    assert [data.classes[label] for label in data.test.labels[:4]] == ["cat", "ship", "ship", "airplane"]
    assert data.augmentation == Augmentation(padding=4, flip=True)
    mean = [float(data.train.pixels[:, channel].double().mean()) / 255 for channel in range(3)]
    assert mean == pytest.approx(data.mean, abs=1e-4)


@pytest.mark.parametrize("layout", ["bin", "python2", "python3", "columns"])
def test_layouts_of_cifar10(layout: str, tmp_path: Path, rng: np.random.Generator) -> None:
    batches = _batches(rng)
    if layout == "bin":
        _write_binary(tmp_path, batches)
    else:
        by_column = [(np.asfortranarray(x), y) for x, y in batches] if layout == "columns" else batches
        _write_pickles(tmp_path, by_column, _python2 if layout == "python2" else _python3)
    data = load_dataset("cifar10", str(tmp_path))
    x, y = np.concatenate([b[0] for b in batches[:5]]), np.concatenate([b[1] for b in batches[:5]])
    np.testing.assert_array_equal(data.train.pixels.numpy(), x.reshape(9, 3, 32, 32))
    np.testing.assert_array_equal(data.train.labels.numpy(), y)
    np.testing.assert_array_equal(data.test.pixels.numpy(), batches[5][0].reshape(4, 3, 32, 32))
    np.testing.assert_array_equal(data.test.labels.numpy(), batches[5][1])


class _Calls:
    """Pickles as a call of `function` with `arguments`."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


@pytest.mark.parametrize("function", [os.system, eval, exec, getattr, np.load, np.fromfile, pickle.loads])
def test_a_hostile_pickle_is_not_run(function: Callable[..., Any], tmp_path: Path, rng: np.random.Generator) -> None:
    mark = tmp_path / "mark"
    code = {os.system: f"touch {mark}", pickle.loads: pickle.dumps(_Calls(os.mkdir, str(mark)))}
    argument = code.get(function, f"open({str(mark)!r}, 'w')")
    hostile = pickle.dumps({b"labels": [1], b"data": _Calls(function, argument)}, protocol=2)
    folder = _write_pickles(tmp_path, _batches(rng), _python3)
    (folder / "data_batch_3").write_bytes(hostile)
    with pytest.raises(UsageError, match=rf"data_batch_3' \(it asks for '.*{function.__name__}'\); expected a pickled"):
        load_dataset("cifar10", tmp_path)
    assert not mark.exists()
    if function is os.system:
        pickle.loads(hostile)
        assert mark.exists()  # it would have run


ROW = np.zeros((1, 3072), np.uint8)


@pytest.mark.parametrize(
    "batch",
    [
        *({b"labels": [1], b"data": data} for data in (ROW.view(np.int8), ROW.astype(object), ROW[:, 1:], ROW[0], b"")),
        *({b"labels": labels, b"data": ROW} for labels in ([1, 2], [-1], [256], [1.0], [], b"1")),
        *({b"labels": [], b"data": ROW[:0]}, {b"labels": [1]}, [1, 2]),
    ],
)
def test_pickles_of_something_else(batch: object, tmp_path: Path, rng: np.random.Generator) -> None:
    folder = _write_pickles(tmp_path, _batches(rng), _python3)
    (folder / "data_batch_2").write_bytes(pickle.dumps(batch, protocol=2))
    with pytest.raises(UsageError, match=r"data_batch_2.*expected a pickled CIFAR-10 batch: b'data', a uint8 array"):
        load_dataset("cifar10", tmp_path)


def test_pickles_cut_short(tmp_path: Path, rng: np.random.Generator) -> None:
    folder = _write_pickles(tmp_path, _batches(rng), _python2)
    whole = (folder / "test_batch").read_bytes()
    for length in [*range(0, 250, 7), len(whole) // 2, len(whole) - 1]:
        (folder / "test_batch").write_bytes(whole[:length])
        with pytest.raises(UsageError, match=r"test_batch.*expected a pickled CIFAR-10 batch"):
            load_dataset("cifar10", tmp_path)


def test_damaged_binary_files(tmp_path: Path, rng: np.random.Generator) -> None:
    _write_binary(tmp_path, _batches(rng))
    path = tmp_path / "cifar10/cifar-10-batches-bin/data_batch_5.bin"
    for content, message in [
        (bytes(3072), r"data_batch_5.bin' has 3072 bytes; expected one or more records of 3073 bytes"),
        (b"", r"data_batch_5.bin' has 0 bytes; expected"),
        (bytes([10] * 3073), r"data_batch_5.bin' has a label 10; expected labels from 0 to 9"),
    ]:
        path.write_bytes(content)
        with pytest.raises(UsageError, match=message):
            load_dataset("cifar10", tmp_path)
    path.unlink()
    with pytest.raises(MissingFileError, match=rf"data_batch_5.bin' \(no such file.*expected a file of {OFFICIAL}"):
        load_dataset("cifar10", tmp_path)


def test_real_mnist(real: Path) -> None:
    data = load_dataset("mnist", real)
    assert (len(data.train), len(data.test), data.shape) == (60_000, 10_000, (1, 28, 28))
    counts = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert torch.bincount(data.test.labels).tolist() == counts
    assert data.test.labels[:5].tolist() == [7, 2, 1, 0, 4]
    pixels = data.train.pixels.double() / 255
    assert float(pixels.mean()) == pytest.approx(data.mean[0], abs=1e-4)
    assert float(pixels.std()) == pytest.approx(data.std[0], abs=1e-4)
    assert data.augmentation == Augmentation()


@pytest.mark.parametrize("zipped", [True, False])
def test_layouts_of_mnist(zipped: bool, tmp_path: Path) -> None:
    pixels, labels = _write_mnist(tmp_path, zipped=zipped)
    data = load_dataset("mnist", tmp_path)
    for images in (data.train, data.test):
        np.testing.assert_array_equal(images.pixels.numpy(), pixels[:, None])
        np.testing.assert_array_equal(images.labels.numpy(), labels)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("images-idx3", gzip.compress(_idx(np.zeros((2, 28, 28), np.uint8)), mtime=0)[:-9], "damaged or cut short"),
        ("images-idx3", _idx(np.zeros((2, 28, 28), np.uint8))[:-1], "has 1583 bytes; expected 1584"),
        ("images-idx3", _idx(np.zeros((2, 8, 8), np.uint8)), "begins with 2051, 2, 8, 8; expected 2051, count, 28, 28"),
        ("images-idx3", b"\0\0", "has 2 bytes; expected an IDX file with a header of 16"),
        ("labels-idx1", _idx(np.zeros((2, 28, 28), np.uint8)), "begins with 2051, 2; expected 2049, count"),
        ("labels-idx1", _idx(np.zeros(2, np.uint8)), "has 2 labels; expected 3, one for each image"),
        ("labels-idx1", _idx(np.array([1, 2, 10], np.uint8)), "has a label 10; expected labels from 0 to 9"),
    ],
)
def test_damaged_mnist(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    _write_mnist(tmp_path)
    (tmp_path / f"mnist/t10k-{name}-ubyte.gz").write_bytes(content)
    with pytest.raises(UsageError, match=rf"t10k-{name}-ubyte.gz' .*{message}"):
        load_dataset("mnist", tmp_path)


def test_digits() -> None:
    data = load_dataset("digits", "nowhere")
    assert (len(data.train), len(data.test), data.shape) == (1437, 360, (1, 8, 8))
    assert torch.bincount(data.train.labels).tolist() == [143, 146, 142, 146, 144, 145, 144, 143, 141, 143]
    assert torch.bincount(data.test.labels).tolist() == [35, 36, 35, 37, 37, 37, 37, 36, 33, 37]
    pixels = torch.cat([data.train.pixels, data.test.pixels])
    assert pixels.unique().tolist() == [k / 16 for k in range(17)]
    assert (data.train.pixels[0, 0, 0] * 16).tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert float(data.train.pixels.double().mean()) == pytest.approx(data.mean[0], abs=5e-5)
    assert float(data.train.pixels.double().std(correction=0)) == pytest.approx(data.std[0], abs=5e-5)


def test_places_are_searched_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, chosen, home = tmp_path / "given", tmp_path / "chosen", tmp_path / "home/.cache/surebound"
    given.mkdir()
    with pytest.raises(MissingFileError, match=r"'mnist' is not in .*http://yann.lecun.com/.* in '.*given/mnist'"):
        load_dataset("mnist", given)
    with pytest.raises(MissingFileError, match=rf"{OFFICIAL}cifar-10-binary.tar.gz, unpacked, in '{home}/cifar10'"):
        load_dataset("cifar10")
    for size, place in enumerate((home, chosen, given), start=1):  # what is found first tells which place it was
        _write_mnist(place)
        for name in ("images-idx3", "labels-idx1"):
            array = np.ones((size, 28, 28) if name == "images-idx3" else size, np.uint8)
            (place / f"mnist/train-{name}-ubyte.gz").write_bytes(_idx(array))
        monkeypatch.setenv("SUREBOUND_DATA", str(chosen))
        assert len(load_dataset("mnist", given).train) == size
    assert len(load_dataset("mnist").train) == 2
    monkeypatch.setenv("SUREBOUND_DATA", "")
    assert len(load_dataset("mnist").train) == 1
    with pytest.raises(MissingFileError, match=r"'mnist' is not in '.*mistyped'; expected"):
        load_dataset("mnist", tmp_path / "mistyped")


def test_unknown_name() -> None:
    with pytest.raises(
        UsageError, match=r"'imagenet'; expected one of: cifar10, mnist, digits, or a folder with train"
    ):
        load_dataset("imagenet")


def test_own_tensors(rng: np.random.Generator) -> None:
    pixels = rng.integers(0, 256, (3000, 2, 3, 4), dtype=np.uint8)
    pixels[:, 1] = 7
    labels = rng.integers(0, 4, 3000).astype(np.int16)
    pixels.flags.writeable = False
    data = dataset_from_tensors(train=(pixels, labels), test=(torch.from_numpy(pixels[:5].copy()), labels[::-1][:5]))
    assert data.classes == ("0", "1", "2", "3") and data.augmentation == Augmentation()
    assert data.mean == pytest.approx((pixels[:, 0].mean() / 255, 7 / 255), rel=1e-6)
    assert data.std == pytest.approx((pixels[:, 0].std() / 255, 1.0), rel=1e-6)
    floats = rng.random((4, 1, 2, 2))
    data = dataset_from_tensors(
        train=(floats, labels[:4]), test=(floats, labels[:4]), name="mine", classes=list("abcd"), mean=[0.5], std=[0.25]
    )
    assert (data.name, data.classes, data.mean, data.std) == ("mine", ("a", "b", "c", "d"), (0.5,), (0.25,))
    np.testing.assert_array_equal(data.train.take([2])[0].numpy(), floats[2:3].astype(np.float32))


def test_own_folder(tmp_path: Path, rng: np.random.Generator) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    pixels, labels = rng.random((6, 1, 5, 5)), np.arange(6)
    np.savez_compressed(folder / "train.npz", pixels=pixels, labels=labels)
    with pytest.raises(MissingFileError, match=r"mine/test.npz' \(no such file or directory\); expected an npz file"):
        load_dataset(str(folder))
    np.savez(folder / "test.npz", pixels=pixels[:2], labels=labels[:2])
    data = load_dataset(str(folder))
    assert (data.name, len(data.train), len(data.test), len(data.classes)) == ("mine", 6, 2, 6)
    np.testing.assert_array_equal(data.test.pixels.numpy(), pixels[:2].astype(np.float32))
    assert dataset_from_folder(folder, augmentation=Augmentation(padding=1)).augmentation.padding == 1
    for arrays, message in [
        ({"pixels": pixels}, r"holds arrays \['pixels'\]"),
        ({"pixels": np.array([None]), "labels": labels}, "is damaged or holds pickled objects"),
    ]:
        np.savez(folder / "test.npz", **arrays)
        with pytest.raises(UsageError, match=rf"mine/test.npz' {message}; expected an npz file"):
            load_dataset(folder)
    np.save(tmp_path / "bare.npy", pixels)
    zipped = (folder / "train.npz").read_bytes()
    flipped = zipped[:300] + bytes([zipped[300] ^ 255]) + zipped[301:]
    for content in ((tmp_path / "bare.npy").read_bytes(), b"", b"text", zipped[:-30], flipped):
        (folder / "test.npz").write_bytes(content)
        with pytest.raises(
            UsageError, match=r"mine/test.npz' (holds a single array|is damaged or .*); expected an npz"
        ):
            load_dataset(folder)


ONE, ZERO = np.zeros((1, 1, 4, 4), np.uint8), np.array([0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test": (ONE[0], ZERO)}, r"test images of 'own': pixels of shape \[1, 4, 4\]"),
        ({"test": (ONE[:0], ZERO[:0])}, "none of them 0"),
        ({"test": (ONE[:, :, 1:], ZERO)}, r"shape \[1, 3, 4\]; expected \[1, 4, 4\]"),
        ({"train": (ONE.repeat(2, 0), ZERO)}, r"training .* labels of shape \[1\].* of 2 images"),
        ({"train": (ONE, ZERO / 1)}, "type float64; expected one int64"),
        ({"train": (ONE, ZERO - 3)}, "a label -3; expected 0 or more"),
        ({"train": (ONE, ZERO + 10**12)}, "label 1000000000000; expected labels below 100000"),
        ({"train": (ONE.astype(int), ZERO)}, "type int64; expected uint8, or float32 in"),
        ({"train": (ONE + 1.5, ZERO)}, "between 1.5 and 1.5; expected finite values"),
        ({"train": (ONE + np.nan, ZERO)}, "between nan and nan; expected finite values"),
        ({"train": (ONE.astype(str), ZERO)}, "training images of 'own': can't convert"),
        ({"classes": ["only"]}, "a test label 1; expected labels below 1, the"),
        ({"mean": [0.0, 0.0]}, "2 means and 1 deviations; expected 1 of each"),
        ({"std": [0.0]}, "expected finite numbers, with positive deviations"),
        ({"mean": [float("nan")]}, "expected finite numbers"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        dataset_from_tensors(**{"train": (ONE, ZERO), "test": (ONE, ZERO + 1), **change})


def test_images_are_shown_in_a_line() -> None:
    images = Images(torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64))
    assert repr(images) == "Images(3 of shape (1, 2, 2), uint8)"


def test_images() -> None:
    images = Images(torch.arange(256, dtype=torch.uint8).reshape(64, 1, 2, 2), torch.arange(64))
    pixels, labels = images.take(range(64))
    np.testing.assert_array_equal(pixels.flatten().numpy(), np.arange(256, dtype=np.float32) / np.float32(255))
    for indices in ([5, 0, 5], torch.tensor([5, 0, 5], dtype=torch.uint8), np.array([5, 0, 5])):
        assert images.take(indices)[1].tolist() == [5, 0, 5]
        assert torch.equal(images.take(indices)[0], pixels[[5, 0, 5]])
    assert images.take([])[0].shape == (0, 1, 2, 2)
    assert len(images.first(10)) == 10 and images.first(10).labels.tolist() == labels[:10].tolist()
    for n in (0, 65):
        with pytest.raises(UsageError, match=f"the first {n} of 64 images; expected a number from 1 to 64"):
            images.first(n)
    for index in (-1, 64):
        with pytest.raises(UsageError, match=f"image {index} of 64; expected an index from 0 to 63"):
            images.take([0, index])
    with pytest.raises(UsageError, match="type bool; expected integers"):
        images.take(torch.ones(64, dtype=torch.bool))


def _oracle(x: np.ndarray, draws: np.ndarray, padding: int) -> np.ndarray:
    out = np.zeros_like(x)
    for image, (top, left, flip) in enumerate(draws):
        for i, j in np.ndindex(x.shape[2:]):
            row, column = i + top - padding, j + left - padding
            if 0 <= row < x.shape[2] and 0 <= column < x.shape[3]:
                out[image, :, i, x.shape[3] - 1 - j if flip else j] = x[image, :, row, column]
    return out


@pytest.mark.parametrize(("padding", "flip"), [(0, False), (0, True), (2, False), (4, True), (7, True)])
def test_augmentation(padding: int, flip: bool, rng: np.random.Generator) -> None:
    augmentation = Augmentation(padding=padding, flip=flip)
    x = rng.random((200, 3, 6, 5)).astype(np.float32)
    draws = augmentation.draw(200, torch.Generator().manual_seed(1))
    assert draws.shape == (200, 3) and draws.dtype == torch.int64
    assert [len(column.unique()) for column in draws.T] == [2 * padding + 1, 2 * padding + 1, 1 + flip]
    assert draws.amin(dim=0).tolist() == [0, 0, 0]
    moved = augmentation.apply(torch.from_numpy(x), draws)
    np.testing.assert_array_equal(moved.numpy(), _oracle(x, draws.numpy(), padding))
    part = augmentation.apply(torch.from_numpy(x[50:80]), draws[50:80])  # one process's share
    assert torch.equal(part, moved[50:80])
    assert torch.equal(draws, augmentation.draw(200, torch.Generator().manual_seed(1)))


def test_draws_are_uniform() -> None:
    draws = Augmentation(padding=4, flip=True).draw(90_000, torch.Generator().manual_seed(0))
    for column, values in zip(draws.T, (9, 9, 2), strict=True):
        expected = 90_000 / values
        assert (torch.bincount(column, minlength=values) - expected).abs().max() < 5 * expected**0.5


def test_augmentations_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match="padding -1; expected 0 or more"):
        Augmentation(padding=-1)
    with pytest.raises(UsageError, match=r"draws of shape \[3, 3\]; expected"):
        Augmentation(padding=1).apply(torch.zeros(2, 1, 4, 4), torch.zeros(3, 3, dtype=torch.int64))


def test_a_pickle_whose_memo_would_fill_the_memory(tmp_path: Path, rng: np.random.Generator) -> None:
    folder = _write_pickles(tmp_path, _batches(rng), _python3)
    for content, problem in [
        (b"\x80\x02}r\xff\xff\xff\x1f.", "it numbers its entry 1 as 536870911"),  # 8 GiB of pointers
        (b"}p536870911\n.", "it numbers its entry 1 as 536870911"),
        (b"\x80\x02]" + b"K\x00a" * 600_000 + b".", "it has more than 1000000 steps"),
    ]:
        (folder / "data_batch_4").write_bytes(content)
        with pytest.raises(UsageError, match=rf"data_batch_4' \({problem}\); expected a pickled CIFAR-10 batch"):
            load_dataset("cifar10", tmp_path)


def test_a_pickle_that_encodes_the_same_text_again_and_again(tmp_path: Path, rng: np.random.Generator) -> None:
    folder = _write_pickles(tmp_path, _batches(rng), _python3)
    text = b"X" + struct.pack("<I", 1000) + b"a" * 1000 + b"q\x00"
    call = b"c_codecs\nencode\nh\x00X\x06\x00\x00\x00latin1\x86R"
    (folder / "data_batch_1").write_bytes(b"\x80\x02](" + text + call * 1000 + b"e.")
    with pytest.raises(UsageError, match=r"data_batch_1' \(it encodes text in a way that pickle does not\)"):
        load_dataset("cifar10", tmp_path)
