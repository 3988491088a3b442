"""The baseline loss, against NumPy."""

import numpy as np
import pytest
import torch
from chains import tiny_batch, tiny_chain

from surebound.errors import UsageError
from surebound.train.losses.standard import Standard


@pytest.mark.parametrize("norm", [False, True])
def test_the_total_is_the_formula(norm: bool) -> None:
    chain, batch = tiny_chain(norm=norm), tiny_batch(kappa=1.0, eps=0.3)
    with torch.no_grad():
        z = chain.module.train()(batch.x).numpy()
    expected = np.mean(np.log(np.exp(z - z[np.arange(len(z)), batch.y][:, None]).sum(1)))
    terms = Standard(l1=0.01)(tiny_chain(norm=norm), batch)
    weights = sum(float(w.detach().abs().sum()) for w in chain.weights())
    assert terms.total.item() == pytest.approx(expected + 0.01 * weights, rel=1e-12)
    assert {name: float(value) for name, value in terms.parts.items()} == {
        "natural": pytest.approx(expected, rel=1e-12),
        "l1": pytest.approx(0.01 * weights, rel=1e-12),
    }


def test_nonsense_is_refused() -> None:
    with pytest.raises(UsageError, match=r"standard: l1 is -1\.0; expected a number at least 0"):
        Standard(l1=-1.0)
