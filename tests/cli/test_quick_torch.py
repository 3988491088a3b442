"""The quick import of torch: what is left out stays out, what is used is there."""

import subprocess
import sys
from importlib.metadata import version

import pytest

from surebound.cli.quick_torch import DEFERRED, TRIED

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not version("torch").startswith(TRIED), reason="another version of torch"),
]


def run(code: str) -> str:
    """What a fresh interpreter prints."""
    begin = "import sys\nfrom surebound.cli.quick_torch import DEFERRED, Deferred, quick_import\nquick_import()\n"
    done = subprocess.run([sys.executable, "-c", begin + code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_arithmetic_leaves_the_rest_unloaded() -> None:
    code = """
import torch
from surebound.network.conv import Conv
conv = Conv(torch.ones(2, 1, 3, 3), (1, 4, 4))
assert torch.rand(1, generator=torch.Generator().manual_seed(0)) != torch.rand(1)
print(conv.adjoint(conv.apply(torch.ones(1, 1, 4, 4)))[0].sum().item())
print(sum(isinstance(sys.modules["torch." + name], Deferred) for name in DEFERRED))
"""
    assert run(code).split() == [str(9.0 * 9 * 4 * 2), str(len(DEFERRED))]


@pytest.mark.parametrize(
    "use",
    [
        "torch.utils.data.DataLoader",
        "torch.distributions.Normal",
        "torch.nn.quantized.Linear",
        "torch.ao.quantization",
        "torch.export.export",
    ],
)
def test_what_is_used_is_loaded(use: str) -> None:
    assert run(f"import torch\nprint({use} is not None)") == "True"
    module = use.rpartition(".")[0]
    assert run(f"import {module}\nprint({use} is not None)") == "True"


def test_after_an_ordinary_import_nothing_changes() -> None:
    code = "import torch\nfrom surebound.cli.quick_torch import quick_import, Deferred\nquick_import()\n"
    code += "import sys\nprint(any(isinstance(m, Deferred) for m in sys.modules.values()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("enabled", [True, False])
def test_what_is_imported_is_not_collected(enabled: bool) -> None:
    """Nor is anything while it is imported; afterwards all is as before."""
    code = f"""
import gc
from surebound.cli.quick_torch import uncollected
(gc.enable if {enabled} else gc.disable)()
with uncollected():
    assert not gc.isenabled()
print(gc.isenabled(), gc.get_freeze_count() > 0)
"""
    assert run(code) == f"{enabled} True"


def test_preloading_leaves_torch_as_it_is() -> None:
    code = "from surebound.cli.quick_torch import preload, quick_import\npreload()\nquick_import()\n"
    code += "import torch\nprint(torch.ones(2, 2).mm(torch.ones(2, 2)).sum().item())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "8.0"
