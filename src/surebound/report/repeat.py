"""The part of the page that says how to repeat what is on it: commands, versions, hashes."""

import json
from collections.abc import Mapping, Sequence
from shlex import quote

from surebound.report.markup import Markup, element, join
from surebound.report.numbers import ranges
from surebound.report.pieces import facts, fold
from surebound.report.results import Material, Result, Training
from surebound.report.runs import run_title

_OPEN, _PRINTED = 2, 8  # entries, up to which they are shown at once, and are on paper in any case


def repeat_section(material: Material) -> Markup:
    """All commands and hashes."""
    parts: list[object] = []
    if material.stores:
        names = [
            (store.name, element("span", digest, class_="hash") if digest else "still open for writing: no hash yet")
            for store, digest in material.stores.items()
        ]
        parts += [element("h3", "Stores"), element("p", "SHA-256 of the files read:", class_="note"), facts(names)]
    count = len(material.results) + len(material.trainings)
    style = "print" if count <= _PRINTED else None
    if material.results:
        parts.append(element("h3", "Runs"))
        parts += [
            _run(k, result, open_=count <= _OPEN, style=style) for k, result in enumerate(material.results, start=1)
        ]
    if material.trainings:
        parts.append(element("h3", "Training"))
        parts += [_training(training, open_=count <= _OPEN, style=style) for training in material.trainings]
    return join(parts)


def _run(k: int, result: Result, *, open_: bool, style: str | None) -> Markup:
    run = result.run
    details: list[tuple[str, object]] = [
        ("Model", run.model),
        ("SHA-256 of the model", _hash(run.model_sha256)),
        ("Data set", run.dataset),
        ("Radius ε", run.radius),
        ("Images", f"{len(run.images):,}: {_shortened(ranges(run.images))}"),
        ("Options", _json(run.options)),
        ("Notes", _json(run.notes) if run.notes else "none"),
        ("Started", run.started or "not recorded"),
        ("surebound", run.version or "not recorded"),
        ("Machine", run.machine or "not recorded"),
        ("Run", f"number {result.number} of {result.store.name}"),
        ("SHA-256 of what its rows depend on", _hash(run.key)),
    ]
    heading = element("h4", f"Run {k}: {run_title(result)}")
    return fold(heading, _command(run.command), facts(details), open_=open_, style=style)


def _training(training: Training, *, open_: bool, style: str | None) -> Markup:
    command = f"surebound train --config {quote((training.folder / 'config.toml').as_posix())} --out NEW_FOLDER"
    hashes: Sequence[tuple[str, object]] = [(f"SHA-256 of {n}", _hash(h)) for n, h in training.hashes.items()]
    return fold(element("h4", training.name), _command(command), facts(hashes), open_=open_, style=style)


def _command(command: str) -> Markup:
    return element("pre", element("code", command)) if command else element("p", "Its command was not recorded.")


def _hash(digest: str) -> Markup:
    return element("span", digest or "not recorded", class_="hash")


def _json(values: Mapping[str, object]) -> Markup:
    return element("code", json.dumps(dict(values), ensure_ascii=False, sort_keys=True, default=str))


def _shortened(text: str, most: int = 400) -> str:
    return text if len(text) <= most else f"{text[: text.rfind(',', 0, most)]}, …"
