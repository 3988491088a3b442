"""Training networks whose robustness can be proved: one loop, one file per loss, presets as TOML."""

from typing import TYPE_CHECKING

from surebound.registry import Registry

if TYPE_CHECKING:
    from surebound.train.batch import Loss

LOSSES: "Registry[type[Loss]]" = Registry(
    "training method",
    {
        "ibp-r": "surebound.train.losses.ibp_r:IBPR",
        "colt": "surebound.train.losses.colt:COLT",
        "relu-stability": "surebound.train.losses.relu_stability:ReLUStability",
        "ibp": "surebound.train.losses.ibp:IBP",
        "ibp-shi": "surebound.train.losses.ibp_shi:IBPShi",
        "crown-ibp": "surebound.train.losses.crown_ibp:CROWNIBP",
        "cap": "surebound.train.losses.cap:CAP",
        "sabr": "surebound.train.losses.sabr:SABR",
        "mtl-ibp": "surebound.train.losses.mtl_ibp:MTLIBP",
        "cc-ibp": "surebound.train.losses.cc_ibp:CCIBP",
        "exp-ibp": "surebound.train.losses.exp_ibp:ExpIBP",
        "taps": "surebound.train.losses.taps:TAPS",
        "staps": "surebound.train.losses.staps:STAPS",
        "pgd": "surebound.train.losses.pgd:PGDTraining",
        "standard": "surebound.train.losses.standard:Standard",
    },
)
"""Name → a frozen dataclass of hyper-parameters that can be called as a loss."""
