"""The numbers of De Palma et al. 2022, "IBP Regularization for Verified Adversarial Robustness via Branch-and-Bound".

All are for CIFAR-10 with the networks, epochs, graphics cards and 30-minute timeouts of the paper.
"""

from dataclasses import dataclass

SOURCE = "De Palma et al. 2022"


@dataclass(frozen=True)
class Quantity:
    """A mean, and the sample standard deviation over repetitions if there were any."""

    mean: float
    deviation: float | None = None


@dataclass(frozen=True, kw_only=True)
class PaperTraining:
    """A row of table 1: percentages, and seconds of training."""

    name: str
    standard: Quantity
    robust: Quantity | None
    verified: Quantity
    seconds: Quantity | None = None


@dataclass(frozen=True)
class PaperBranching:
    """A row of figure 2 or 5: mean seconds, mean subproblems, percentage of timeouts."""

    seconds: float
    subproblems: float
    timeouts: float


_Q = Quantity
_OWN = "their own run"
TABLE1: dict[tuple[str, str], tuple[PaperTraining, ...]] = {
    ("2/255", "colt"): (
        PaperTraining(
            name=f"COLT, {_OWN}",
            standard=_Q(78.37, 0.24),
            robust=_Q(65.66, 0.13),
            verified=_Q(61.88, 0.11),
            seconds=_Q(3.05e4, 1.21e2),
        ),
        PaperTraining(name="Balunovic 2020", standard=_Q(78.4), robust=None, verified=_Q(60.50)),
    ),
    ("2/255", "ibp-r"): (
        PaperTraining(
            name="IBP-R",
            standard=_Q(78.19, 0.52),
            robust=_Q(66.39, 0.12),
            verified=_Q(61.97, 0.18),
            seconds=_Q(9.34e3, 2.95e1),
        ),
    ),
    ("2/255", "ibp-r-mask"): (
        PaperTraining(
            name="IBP-R w/ Masking",
            standard=_Q(78.22, 0.26),
            robust=_Q(66.28, 0.17),
            verified=_Q(61.69, 0.29),
            seconds=_Q(9.63e3, 4.42e1),
        ),
    ),
    ("2/255", "ibp-shi"): (PaperTraining(name="Shi 2021", standard=_Q(66.84), robust=None, verified=_Q(52.85)),),
    ("2/255", "crown-ibp"): (
        PaperTraining(name="Zhang 2020", standard=_Q(71.52), robust=_Q(59.72), verified=_Q(53.97), seconds=_Q(9.13e4)),
    ),
    ("2/255", "relu-stability"): (
        PaperTraining(name="Xiao 2019", standard=_Q(61.12), robust=_Q(49.92), verified=_Q(45.93)),
    ),
    ("8/255", "colt"): (
        PaperTraining(
            name=f"COLT, {_OWN}",
            standard=_Q(51.94, 0.14),
            robust=_Q(31.68, 0.23),
            verified=_Q(28.73, 0.23),
            seconds=_Q(1.03e4, 1.70e1),
        ),
        PaperTraining(name="Balunovic 2020", standard=_Q(51.70), robust=None, verified=_Q(27.50)),
    ),
    ("8/255", "ibp-r"): (
        PaperTraining(
            name="IBP-R",
            standard=_Q(51.43, 0.21),
            robust=_Q(31.89, 0.11),
            verified=_Q(27.87, 0.01),
            seconds=_Q(5.92e3, 2.95e1),
        ),
    ),
    ("8/255", "ibp-r-mask"): (
        PaperTraining(
            name="IBP-R w/ Masking",
            standard=_Q(52.74, 0.30),
            robust=_Q(32.78, 0.33),
            verified=_Q(27.55, 0.22),
            seconds=_Q(5.89e3, 3.38e1),
        ),
    ),
    ("8/255", "ibp-shi"): (
        PaperTraining(
            name="Shi 2021", standard=_Q(48.28, 0.40), robust=None, verified=_Q(34.42, 0.32), seconds=_Q(9.51e3)
        ),
    ),
    ("8/255", "crown-ibp"): (
        PaperTraining(name="Zhang 2020", standard=_Q(54.50), robust=_Q(34.26), verified=_Q(30.50), seconds=_Q(9.13e4)),
    ),
    ("8/255", "relu-stability"): (
        PaperTraining(name="Xiao 2019", standard=_Q(40.45), robust=_Q(26.78), verified=_Q(20.27)),
    ),
}

# (setting, network, branching); figure 2 for the networks of IBP-R, figure 5 for those of COLT.
BRANCHING: dict[tuple[str, str, str], PaperBranching] = {
    ("2/255", "ibp-r", "upb"): PaperBranching(113.42, 930.83, 5.70),
    ("2/255", "ibp-r", "fsb"): PaperBranching(127.65, 1244.01, 6.22),
    ("2/255", "ibp-r", "sr"): PaperBranching(215.89, 5185.27, 11.66),
    ("8/255", "ibp-r-mask", "upb"): PaperBranching(237.24, 935.80, 12.55),
    ("8/255", "ibp-r-mask", "fsb"): PaperBranching(243.29, 795.22, 12.92),
    ("8/255", "ibp-r-mask", "sr"): PaperBranching(303.76, 6744.72, 15.13),
    ("2/255", "colt", "upb"): PaperBranching(98.87, 257.17, 5.16),
    ("2/255", "colt", "fsb"): PaperBranching(104.41, 379.77, 5.41),
    ("2/255", "colt", "sr"): PaperBranching(229.77, 5894.53, 12.29),
    ("8/255", "colt", "upb"): PaperBranching(100.19, 2924.80, 4.46),
    ("8/255", "colt", "fsb"): PaperBranching(101.00, 2840.52, 4.09),
    ("8/255", "colt", "sr"): PaperBranching(318.21, 20916.78, 15.99),
}
