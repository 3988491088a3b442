"""Fixtures and settings that every test shares."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

# The same examples on every run, and no deadline: a test must not fail because the machine was busy.
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of published networks and properties; tests that need it are skipped where it is absent."""
    default = Path(__file__).resolve().parents[2] / "shared"
    folder = Path(os.environ.get("SUREBOUND_SHARED", default))
    if not folder.is_dir():
        pytest.skip("needs the folder of published networks and properties: set SUREBOUND_SHARED to it")
    return folder


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator that starts from the same seed in every test."""
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Tests run in several processes, so that each keeps to one thread. torch is left alone if no test imported it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)
