"""Reads metrics.jsonl, which people may have edited, and which a kill may have cut short."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from surebound.config import shown
from surebound.errors import MissingFileError, TrainingError, reason
from surebound.train.validate import Validation

_ACCURACIES = ("standard", "pgd", "ibp")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All records of a run; a last line that was cut short by a kill does not count."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise MissingFileError(f"cannot read '{path}' ({reason(error)}); expected the metrics of a run") from error
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line.decode("ascii"))  # as it was written
        except (ValueError, RecursionError) as error:
            if number == len(lines) and line.startswith(b"{") and line.isascii() and not line.endswith(b"\n"):
                break
            raise TrainingError(f"line {number} of '{path}' is not JSON; expected a record of the run") from error
        if problem := _problem(record):
            raise TrainingError(f"line {number} of '{path}' {problem}")
        found.append(record)
    return found


def validation_of(record: Mapping[str, Any]) -> Validation:
    """What a record of the kind "validation" holds."""
    shares = {name: record[name] for name in _ACCURACIES}
    return Validation(images=record["images"], ambiguous=tuple(record["ambiguous"]), **shares)


def _problem(record: Any) -> str:
    """What is wrong with a record, if anything is."""
    if not isinstance(record, dict):
        return f"is {shown(record)}; expected a JSON object"
    kinds: dict[str, tuple[type, ...]] = {"kind": (str,), "epoch": (int,), "step": (int,)}
    if record.get("kind") == "validation":
        kinds |= {"images": (int,), "ambiguous": (list,), **dict.fromkeys(_ACCURACIES, (int, float))}
    elif record.get("kind") == "epoch":
        kinds |= {"parts": (dict,)}
    for key, types in kinds.items():
        if key not in record:
            return f"has no '{key}'; expected one"
        if type(record[key]) not in types:
            return f"has {shown(record[key])} as its '{key}'; expected {_WORDS[types[0]]}"
    return ""


_WORDS = {str: "a string", int: "a number", list: "a list", dict: "an object"}
