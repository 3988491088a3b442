"""The part of the page that says how to repeat what is on it: commands, versions, hashes."""

import json
from collections.abc import Mapping, Sequence
from os.path import isdir
from shlex import quote

from surebound.data import DATASETS
from surebound.evaluate.store import Run
from surebound.report.markup import Markup, element, join
from surebound.report.numbers import ranges
from surebound.report.pieces import facts, fold
from surebound.report.results import Material, Result, Training, short_names
from surebound.report.runs import run_titles

_OPEN, _PRINTED = 2, 8  # entries, up to which they are shown at once, and are on paper in any case


def repeat_section(material: Material) -> Markup:
    """All commands and hashes."""
    parts: list[object] = []
    stores = short_names(map(str, material.stores))
    if material.stores:
        names = [
            (stores[str(store)], _hash(digest) if digest else "still open for writing: no hash yet")
            for store, digest in material.stores.items()
        ]
        parts += [element("h3", "Stores"), element("p", "SHA-256 of the files read:", class_="note"), facts(names)]
    count = len(material.results) + len(material.trainings)
    style = "print" if count <= _PRINTED else None
    if material.results:
        parts.append(element("h3", "Runs"))
        named = zip(material.results, run_titles(material.results), strict=True)
        parts += [
            _run(f"Run {k}: {title}", result, stores[str(result.store)], open_=count <= _OPEN, style=style)
            for k, (result, title) in enumerate(named, start=1)
        ]
    if material.trainings:
        parts.append(element("h3", "Training"))
        parts += [_training(training, open_=count <= _OPEN, style=style) for training in material.trainings]
    return join(parts)


def _run(title: str, result: Result, store: str, *, open_: bool, style: str | None) -> Markup:
    run = result.run
    details: list[tuple[str, object]] = [
        ("Model", run.model),
        ("SHA-256 of the model", _hash(run.model_sha256)),
        ("Data set", run.dataset),
        ("Radius ε", run.radius),
        ("Images", f"{len(run.images):,}: {_shortened(ranges(run.images))}" if run.images else "none"),
        ("Options", _json(run.options)),
        ("Notes", _json(run.notes) if run.notes else "none"),
        ("Started", run.started or "not recorded"),
        ("surebound", run.version or "not recorded"),
        ("Machine", run.machine or "not recorded"),
        ("Run", f"number {result.number} of {store}"),
        ("SHA-256 of what its rows depend on", _hash(run.key)),
    ]
    heading = element("h4", title)
    return fold(heading, _command(run.command or certify_command(run)), facts(details), open_=open_, style=style)


def _training(training: Training, *, open_: bool, style: str | None) -> Markup:
    hashes: Sequence[tuple[str, object]] = [(f"SHA-256 of {n}", _hash(h)) for n, h in training.hashes.items()]
    return fold(
        element("h4", training.name), _command(train_command(training)), facts(hashes), open_=open_, style=style
    )


def _command(command: str) -> Markup:
    return element("pre", element("code", command))


def train_command(training: Training) -> str:
    """The command that trains the same again; the Python call, where it takes a module or images of one's own."""
    config = (training.folder / "config.toml").as_posix()
    own = [what for what, table in (("module", "network"), ("dataset", "data")) if _is_own(training.config, table)]
    if not own:
        return f"surebound train --config {quote(config)} --out NEW_FOLDER"
    given = ", ".join(f"{what}={what}" for what in own)
    return f'surebound.train({config!r}, out="NEW_FOLDER", {given})'


def _is_own(config: Mapping[str, object], table: str) -> bool:
    """Whether a configuration's network is a module, or its data are tensors, that were handed over in Python."""
    found = config.get(table)
    name = found.get("name") if isinstance(found, Mapping) else None
    if table == "network":
        return name == "own"
    return isinstance(name, str) and not _is_found(name)


def _is_found(dataset: str) -> bool:
    """Whether commands take a data set by this name, or a folder."""
    return dataset in tuple(DATASETS) or "/" in dataset or isdir(dataset)


def certify_command(run: Run) -> str:
    """The command for a run that was begun in Python; the Python call, where it takes none or one's own images."""
    images = list(run.images)
    first = images == list(range(len(images)))
    if not images or not _is_found(run.dataset):
        more = "".join(f", {name}={value!r}" for name, value in {"norm": run.norm, **_options(run)}.items())
        chosen = f"range({len(images)})" if first else repr(images)
        return f'surebound.certify({run.model!r}, dataset, eps={run.eps!r}, store="NEW.sqlite", images={chosen}{more})'
    words = ["surebound", "certify", run.model, "--dataset", run.dataset, "--eps", run.eps, "--norm", run.norm]
    words += ["--first", str(len(images))] if first else ["--indices", ",".join(map(str, images))]
    for name, value in _options(run).items():
        option = "--no-early-stop" if name == "early_stop" else f"--{name.replace('_', '-')}"
        if not isinstance(value, bool):
            words += [option, str(value)]
        elif value == (name != "early_stop"):
            words.append(option)
    return " ".join(map(quote, [*words, "--store", "NEW.sqlite"]))


def _options(run: Run) -> dict[str, object]:
    """Those that may be chosen, beside the norm."""
    known = ("timeout", "branching", "search", "attack", "seed", "early_stop", "radius_search")
    return {name: run.options[name] for name in known if name in run.options}


def _hash(digest: str) -> Markup:
    return element("span", digest or "not recorded", class_="hash")


def _json(values: Mapping[str, object]) -> Markup:
    return element("code", json.dumps(dict(values), ensure_ascii=False, sort_keys=True, default=str))


def _shortened(text: str, most: int = 400) -> str:
    return text if len(text) <= most else f"{text[: text.rfind(',', 0, most)]}, …"
