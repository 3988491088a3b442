"""metrics.jsonl as a run writes it, as a kill leaves it, and as people may damage it."""

import json
from pathlib import Path
from typing import Any

import pytest

from surebound.errors import MissingFileError, TrainingError
from surebound.train.metrics import read_metrics, validation_of
from surebound.train.validate import Validation

EPOCH: dict[str, Any] = {"kind": "epoch", "epoch": 1, "step": 5, "loss": 0.5, "parts": {"l1": 0.1}}
VALIDATION: dict[str, Any] = {
    "kind": "validation", "epoch": 1, "step": 5, "images": 9, "standard": 1.0, "pgd": 0.5, "ibp": 0, "ambiguous": [1.5]
}  # fmt: skip


def lines(*records: object) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def without(key: str) -> dict[str, Any]:
    return {k: v for k, v in VALIDATION.items() if k != key}


def test_what_was_written_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(lines(EPOCH, VALIDATION))
    assert read_metrics(path) == [EPOCH, VALIDATION]
    expected = Validation(images=9, standard=1.0, pgd=0.5, ibp=0, ambiguous=(1.5,))
    assert validation_of(read_metrics(path)[1]) == expected
    path.write_bytes(b"")
    assert read_metrics(path) == []


def test_a_line_cut_short_anywhere_does_not_count(tmp_path: Path) -> None:
    path, whole = tmp_path / "metrics.jsonl", lines(VALIDATION)
    for length in range(len(whole) - 1):
        path.write_bytes(lines(EPOCH) + whole[:length])
        assert read_metrics(path) == [EPOCH]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (lines(EPOCH) + b"\xff\xfe\x00\n", "line 2 of '.*' is not JSON; expected a record of the run"),
        (b"\x00\xff", "line 1 of '.*' is not JSON"),
        (b'{"kind": "ep\n' + lines(EPOCH), "line 1 of '.*' is not JSON"),  # cut, but not the last one
        (b'{"step": ' + b"9" * 5000 + b"}\n", "line 1 of '.*' is not JSON"),
        (b"[" * 100_000 + b"\n", "line 1 of '.*' is not JSON"),
        (lines(EPOCH, [1, 2]), r"line 2 of '.*' is \[1, 2\]; expected a JSON object"),
        (lines(7), "line 1 of '.*' is 7; expected a JSON object"),
        (lines({"kind": "epoch", "epoch": 1}), "line 1 of '.*' has no 'step'; expected one"),
        (lines(EPOCH | {"step": "5"}), "line 1 of '.*' has '5' as its 'step'; expected a number"),
        (lines(EPOCH | {"step": True}), "line 1 of '.*' has True as its 'step'; expected a number"),
        (lines(EPOCH | {"parts": 1}), "line 1 of '.*' has 1 as its 'parts'; expected an object"),
        (lines(without("ambiguous")), "line 1 of '.*' has no 'ambiguous'"),
        (lines(without("pgd")), "line 1 of '.*' has no 'pgd'"),
        (lines(VALIDATION | {"ibp": None}), "line 1 of '.*' has None as its 'ibp'; expected a number"),
    ],
)
def test_damage_is_named_with_its_line(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(content)
    with pytest.raises(TrainingError, match=problem):
        read_metrics(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"cannot read '.*none' \(no such file or directory\); expected the met"):
        read_metrics(tmp_path / "none")
