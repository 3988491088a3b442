"""Stores and training folders with known contents, and a reader of pages."""

import json
from collections.abc import Iterable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from surebound.evaluate.store import Counter, Outcome, Row, Run, Stage, Store

SHAPE = (1, 2, 2)


def make_run(**changes: Any) -> Run:
    values: dict[str, Any] = {
        "model": "runs/small/model.onnx",
        "model_sha256": "ab" * 32,
        "dataset": "digits",
        "shape": SHAPE,
        "classes": ("zero", "one", "two"),
        "eps": "2/255",
        "images": tuple(range(8)),
        "options": {"timeout": 60},
        "command": "surebound certify runs/small --dataset digits --eps 2/255",
        "version": "0.1.0",
        "machine": "two cores",
        "started": "2026-01-02T03:04:05Z",
    }
    return Run(**{**values, **changes})


def make_counter(shape: tuple[int, ...] = SHAPE) -> Counter:
    clean = np.linspace(0.1, 0.9, int(np.prod(shape)), dtype=np.float32)
    return Counter(clean=clean, point=clean + np.float32(0.004), adversarial=2)


def make_row(image: int, outcome: Outcome, stage: Stage, seconds: float = 0.5, **changes: Any) -> Row:
    values: dict[str, Any] = {
        "image": image,
        "label": 1,
        "predicted": 0 if outcome == "misclassified" else 1,
        "outcome": outcome,
        "stage": stage,
        "seconds": seconds,
        "phases": {stage: seconds},
    }
    if outcome in ("attacked", "falsified"):
        values["counter"] = make_counter()
    return Row(**{**values, **changes})


ROWS = (
    make_row(0, "misclassified", "standard", 0.001),
    make_row(1, "attacked", "attack", 0.1),
    make_row(2, "verified", "ibp", 0.01, lower_bound=0.7),
    make_row(3, "verified", "crown", 0.2, lower_bound=0.1),
    make_row(4, "verified", "search", 12.0, subproblems=1234, lower_bound=1e-5),
    make_row(5, "falsified", "search", 3.0, subproblems=70),
    make_row(6, "timeout", "search", 60.0, subproblems=9000, lower_bound=-0.2, reason="out of time"),
    make_row(7, "unknown", "search", 2.0, reason="a bound was not finite"),
)


def write_store(path: Path, runs: Iterable[tuple[Run, Iterable[Row]]] = ((make_run(), ROWS),)) -> Path:
    with Store(path) as store:
        store._db.execute("PRAGMA synchronous = OFF")  # thousands of rows, and nothing to lose
        for run, rows in runs:
            number = store.begin(run)
            for row in rows:
                store.add(number, row)
    return path


CONFIG = """
method = "ibp-r"
eps = "1/20"
seed = 0
data = { name = "digits", batch = 50 }
network = { name = "fc-small" }
schedule = { epochs = 3, kappa = [0.0, 1.0] }
optimiser = { name = "sgd", lr = 0.1 }
"""


def epoch(number: int, **changes: Any) -> dict[str, Any]:
    parts = {"natural": 1.0 / number, "robust": 2.0 / number}
    ramps = {"lr": 0.1, "eps": 0.05 * number / 3, "kappa": number / 3, "seconds": 2.5 * number}
    return {"kind": "epoch", "epoch": number, "step": 10 * number, "stage": 0, "loss": 3.0 / number, "parts": parts} | {
        **ramps,
        **changes,
    }


def validation(number: int, ambiguous: list[float], **changes: Any) -> dict[str, Any]:
    shares = {"images": 40, "standard": 0.1 + 0.25 * number, "pgd": 0.05 + 0.25 * number, "ibp": 0.2 * number}
    return {"kind": "validation", "epoch": number, "step": 10 * number, **shares, "ambiguous": ambiguous} | changes


METRICS = (validation(0, [120.0, 60.5]), epoch(1), epoch(2), epoch(3), validation(3, [7.5, 3.0]))


def write_training(folder: Path, metrics: Iterable[Mapping[str, Any] | str] = METRICS, config: str = CONFIG) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(config)
    lines = [line if isinstance(line, str) else json.dumps(line) for line in metrics]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "model.onnx").write_bytes(b"a network")
    return folder


class Page(HTMLParser):
    """Checks that elements close in order, and keeps what the tests ask for."""

    VOID = frozenset({"br", "img", "link", "meta", "path", "rect", "line", "circle"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"an attribute of {tag} is there twice"
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).replace("\u202f", " ").split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]
