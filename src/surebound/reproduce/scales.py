"""How large a reproduction is, and what that changes: all numbers of both experiments in one table.

| scale | images, network | training images | seeds | certified | timeout | branching |
|---|---|---|---|---|---|---|
| smoke | digits, fc-small | 400, for a second | 0, 1 | 10 | 2 s | 5 images, 2 s |
| cpu | CIFAR-10, conv-small | 16,000, for minutes | 0, 1 | 200 | 10 s | 500 images, 20 s |
| day | CIFAR-10, the paper's | 50,000, for hours | 0 | 200 | 60 s | 200 images, 60 s |
| paper | CIFAR-10, the methods' own | 50,000, for hours | 0, 1, 2 | 10,000 | 1800 s | 500 images, 1800 s |

Imports nothing heavy: the command line reads the names from here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

SETTINGS = {"2-255": "2/255", "8-255": "8/255"}
METHODS = ("ibp-r", "colt", "ibp-shi", "crown-ibp", "relu-stability", "ibp-r-mask")
RULES = ("upb", "fsb", "sr")
NETWORKS = (("2-255", "ibp-r"), ("2-255", "colt"), ("8-255", "ibp-r-mask"), ("8-255", "colt"))
"""What branching is compared on: figures 2 and 5 of the paper, which takes IBP-R with masking at 8/255."""
PROFILES = ("paper", "default")
"""The verifier's profiles that branching is compared with, one table each."""
PAPER_ATTACK = (500, 100, 9)
"""Iterations, restarts and targets: every other class of CIFAR-10."""


@dataclass(frozen=True)
class Training:
    """One training: a radius, a method, a seed."""

    setting: str  # a key of SETTINGS
    method: str
    seed: int = 0

    @property
    def eps(self) -> Fraction:
        return Fraction(SETTINGS[self.setting])

    @property
    def folder(self) -> str:
        """Below the output folder."""
        return f"{self.setting}/{self.method}/seed-{self.seed}"

    def __str__(self) -> str:
        return f"{SETTINGS[self.setting]} {self.method} seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The numbers of a reproduction."""

    name: str
    dataset: str
    preset: str  # of a {setting} and {method}
    changes: tuple[str, ...] = ()  # to every preset, beside the seed; {eps} is the radius
    changes_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # to the preset of a method
    seeds: tuple[int, ...]
    images: int  # certified for table 1: the first test images
    timeout: float  # seconds for each
    branching_images: int
    branching_timeout: float
    attack: tuple[int, int, int] = (100, 10, 3)  # iterations, restarts and targets, with the paper's search
    differs: tuple[str, ...]  # from the paper, for people
    differs_table1: tuple[str, ...] = ()
    differs_branching: tuple[str, ...] = ()

    def preset_of(self, training: Training) -> tuple[str, tuple[str, ...]]:
        """The preset of a training, and the settings to change in it."""
        changes = (f"seed={training.seed}", *self.changes, *self.changes_of.get(training.method, ()))
        eps = SETTINGS[training.setting]
        return self.preset.format(setting=training.setting, method=training.method), tuple(
            c.format(eps=eps) for c in changes
        )

    def differences(self, experiment: str, search: str) -> tuple[str, ...]:
        """All that differs from the paper in the table of an experiment with a profile of the verifier."""
        own = self.differs_table1 if experiment == "table1" else self.differs_branching
        if search == "default":
            return (*self.differs, *own, *_DEFAULT_SEARCH)
        steps, restarts, targets = self.attack
        fewer = "" if (steps, restarts) == PAPER_ATTACK[:2] else " (the paper: 500 and 100)"
        first = (
            f"Attack: MI-FGSM with the paper's draws, {steps} iterations and {restarts} restarts{fewer} for each of "
            f"the {targets} nearest classes. One restart begins at the centre of the box, and one that can only move "
            "by a thousandth of ε any more ends. During the search, attacks of 100 iterations start from up to 10 of "
            "the relaxations' minimisers, for a twentieth of the time."
        )
        return (*self.differs, *own, first, *_PAPER_SEARCH)


_OURS = (
    "Every row is trained and certified here, also those that the paper quotes from other papers; all are certified in "
    "the same way, by our own verifier with UPB branching.",
)

_DEFAULT_SEARCH = (
    "Attack: MI-FGSM with steps relative to the box, 40 of them, 3 restarts and the 3 nearest classes; the paper has "
    "up to 500 steps and 100 restarts, drawn from other ranges.",
    "Search: surebound's own with the rule of the row, not the paper's. Batches are as large as memory and cache "
    "allow, dual iterations begin at 5 and not at 2, subproblems whose duals are the bottleneck get more of them, "
    "descents on the folded network look for counterexamples, hard regions get planes that are tighter than the "
    "triangle, and where bounds stand still, linear programs take turns.",
)
_PAPER_SEARCH = (
    "Bounds: β-CROWN as published, but over the ambiguous neurons only (the others are folded away), the best "
    "iterate of a subproblem counts, the bound before any split has 20 iterations, and what proves anything is "
    "evaluated again in float64 with its rounding error taken off.",
    "Dual iterations: what more of them gain is compared per iteration, not per second, and after a trial that did not "
    "pay the next one waits for 20 batches.",
    "Queue: all classes of an image are searched in one, without those that bounds before any split have settled; the "
    "last batches are smaller where the time would not suffice for a whole one.",
)

SMOKE = Scale(
    name="smoke",
    dataset="digits",
    preset="digits-{method}-cpu",
    changes=(
        "eps={eps}",
        "data.first=400",
        "schedule.epochs=2",
        "schedule.warmup=0",
        "schedule.mixing=1",
        "validation.every=0",
        "validation.images=50",
        "validation.attack_steps=2",
    ),
    changes_of={
        "colt": ("schedule.epochs=1",),
        "ibp-shi": ("optimiser.milestones=[1]",),
        "crown-ibp": ("optimiser.milestones=[1]",),
    },
    seeds=(0, 1),
    images=10,
    timeout=2.0,
    branching_images=5,
    branching_timeout=2.0,
    differs=(
        "This scale only shows that every part runs; its numbers mean nothing. It trains a small dense network for a "
        "second on the bundled 8×8 digits.",
    ),
    differs_table1=("Certification: 10 test images with 2 seconds each.", *_OURS),
    differs_branching=("Images: 5 test images, with 2 seconds for each rule.",),
)

CPU = Scale(
    name="cpu",
    dataset="cifar10",
    preset="cifar10-{setting}-{method}-cpu",
    changes=("data.first=16000",),
    seeds=(0, 1),
    images=200,
    timeout=10.0,
    branching_images=500,
    branching_timeout=20.0,
    differs=(
        "Network: conv-small, with two convolutions, for every method and radius; the paper has networks of 2.1 "
        "million parameters, and 17.2 million for the rows of Shi 2021 and Zhang 2020.",
        "Schedule: 9 to 20 epochs of the first 16,000 training images, where the presets of the paper have 160 to 3200 "
        "epochs of 50,000; warm-up, ramps and the fall of the learning rate keep their shares of it. CROWN-IBP uses "
        "loss fusion, COLT 10 projections and 4 attack steps, and ReLU stability plain intervals.",
        "Hardware: one thread of a processor for each training and each verification; the paper has a graphics card.",
    ),
    differs_table1=(
        "Certification: the first 200 test images with 10 seconds each; the paper has 10,000 with 30 minutes each.",
        "Seeds: two; the paper has three.",
        "Accuracies are therefore far below the paper's; what can be compared is the order of the methods.",
        *_OURS,
    ),
    differs_branching=("Timeout: 20 seconds for each rule and image; the paper has 30 minutes.",),
)

DAY = Scale(
    name="day",
    dataset="cifar10",
    preset="cifar10-{setting}-{method}-day",
    seeds=(0,),
    images=200,
    timeout=60.0,
    branching_images=200,
    branching_timeout=60.0,
    differs=(
        "Schedule: 40 epochs for every method (COLT: 10 for each stage), where the paper has 800 for IBP-R and 200 for "
        "each stage of COLT, and the papers it quotes have 160 to 3200. Mixing phases and ramps keep their shares. The "
        "learning rate falls less than in proportion, because the last epochs would otherwise move nothing: to a "
        "hundredth for IBP-R, not by 0.95 to the power of 200, and to a 64th in each stage of COLT.",
        "Network: the paper's own, one for each radius, for every method; the rows of Shi 2021 and Zhang 2020 have "
        "17.2 million parameters and batch norm in the paper, that of Xiao 2019 a smaller network. CROWN-IBP uses "
        "loss fusion, ReLU stability plain intervals.",
        "Hardware: one thread of a processor for each training and each verification; the paper has a graphics card.",
    ),
    differs_table1=(
        "Certification: the first 200 test images with 60 seconds each; the paper has 10,000 with 30 minutes each.",
        "Seeds: one; the paper has three.",
        *_OURS,
    ),
    differs_branching=(
        "Images: the first 200 test images with 60 seconds for each rule; the paper has 500 with 30 minutes.",
    ),
)

PAPER = Scale(
    name="paper",
    dataset="cifar10",
    preset="cifar10-{setting}-{method}",
    seeds=(0, 1, 2),
    images=10_000,
    timeout=1800.0,
    branching_images=500,
    branching_timeout=1800.0,
    attack=PAPER_ATTACK,
    differs=(
        "Networks, schedules, seeds, images and timeouts are the paper's, or those of the papers it quotes; where "
        "these leave a number open, the presets give their own choice.",
        "Hardware: one thread of a processor for each verification; the paper has a graphics card.",
    ),
    differs_table1=_OURS,
)

SCALES: Mapping[str, Scale] = {scale.name: scale for scale in (SMOKE, CPU, DAY, PAPER)}
