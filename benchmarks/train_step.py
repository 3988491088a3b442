"""What a training step costs: every method beside a plain PyTorch adversarial step, and against the machine's SGEMM.

    python benchmarks/train_step.py --threads 2 --rounds 5

Networks and batches are the paper's (conv-2-255, batch 100; conv-8-255, batch 150), hyper-parameters those of the
CIFAR-10 presets, images are random. Methods take turns in every round and the best of all rounds counts, so that a busy
moment of the machine does not fall on one of them alone. FLOPs are what torch's counter finds in one step: products and
convolutions, forwards and backwards. Beside every step, matrix products (2048 × 2048) run for as long as it took; the
share of SGEMM is the median over the rounds of the step's rate over theirs, so that both meet the same machine.

Reports: benchmarks/results/train_step.md, and train_cost.md, which multiplies the steps of IBP-R, COLT as the paper
ported it and COLT as its authors have it with the paper's numbers of epochs.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from common import RESULTS, command_text, machine, markdown_table, products_rate, write_report

if TYPE_CHECKING:
    from torch import Tensor

CLASSES = 10
SHAPE = (3, 32, 32)
STAGES = {"2-255": 4, "8-255": 3}
COLTS = ("colt", "colt-original")
PAPER_RATIO = {"2-255": 0.31, "8-255": 0.57}  # IBP-R over COLT, table 1
PAPER_GAIN = {"2-255": 5.7, "8-255": 4.4}  # COLT as published over the port, footnote ‡ of table 1
EPOCHS, MIXING = 800, 600  # of IBP-R
STAGE_EPOCHS, STAGE_MIXING = 200, 60  # of COLT

LONG = 3.0  # seconds of a step that is measured once
SHALLOWER = {"taps": ["loss.classifier_layers=2"], "staps": ["loss.taps.classifier_layers=2"]}  # than on cnn7

Step = Callable[[int], None]


@dataclass(frozen=True)
class Task:
    """A step to time: a method, and where in its schedule."""

    setting: str  # 2-255 or 8-255
    method: str
    kappa: float
    stage: int = 0

    @property
    def name(self) -> str:
        return f"{self.method} stage {self.stage}" if self.method in COLTS else self.method


def main() -> int:
    args = _arguments()
    import torch

    from surebound.memory import keep_memory
    from surebound.train import LOSSES

    keep_memory()
    torch.set_num_threads(args.threads)
    methods = args.methods or [*LOSSES, "colt-original"]
    where = machine(args.threads)
    tables, costs = [], []
    for setting in args.settings:
        tasks = [t for method in methods for t in _tasks(setting, method)]
        plain = Task(setting, "plain PyTorch PGD", 1.0)
        steps = {task: _step(task) for task in tasks} | {plain: _plain_step(setting)}
        flops = {task: _flops(steps[task]) for task in tasks}
        # torch's counter cannot follow a module inside autograd.grad; the passes are those of pgd
        flops[plain] = _flops(_step(Task(setting, "pgd", 1.0)))
        best, shares = _measure(steps, flops, args.rounds)
        tables.append(_table(setting, [*tasks, plain], plain, best, flops, shares))
        costs.append(cost({(t.method, t.kappa, t.stage): seconds for t, seconds in best.items()}, setting))
        print(tables[-1], flush=True)
    text = "\n\n".join(tables)
    intro = (__doc__ or "").split("\n\n")[2].replace("\n", " ")
    command = f"```\n{command_text()}\n```\n"
    write_report(args.out / "train_step.md", f"# A training step\n\n{where}\n\n{intro}\n\n{text}\n\n{command}")
    if {"ibp-r", *COLTS} <= set(methods):
        write_report(args.out / "train_cost.md", _cost_report(costs, where, command))
    return 0


def _tasks(setting: str, method: str) -> list[Task]:
    """During the ramp and after it; for COLT, in every stage."""
    stages = STAGES[setting] if method in COLTS else 1
    kappas = (1.0,) if method in ("standard",) else (0.5, 1.0)
    return [Task(setting, method, kappa, stage) for stage in range(stages) for kappa in kappas]


def _step(task: Task) -> Step:
    import torch

    from surebound.network.architectures import architecture
    from surebound.train.batch import Batch, Draws
    from surebound.train.config import at_stage, read_config
    from surebound.train.learner import Learner

    config = read_config(f"cifar10-{task.setting}-{task.method}", SHALLOWER.get(task.method, ()))
    x, y = _images(task.setting)
    torch.manual_seed(0)
    net = architecture(f"conv-{task.setting}", in_shape=SHAPE, classes=CLASSES, mean=(0.5,) * 3, std=(0.2,) * 3)
    chain = Learner(net, SHAPE)
    frozen = task.stage if config.schedule.freeze else 0
    net.requires_grad_(False)
    trained = chain.parameters(start=frozen)
    for parameter in trained:
        parameter.requires_grad_(True)
    optimiser = torch.optim.SGD(trained, lr=1e-6, momentum=0.9)
    eps = float(config.eps) * at_stage(config.schedule.inflation, task.stage)
    if task.kappa < 1 and task.method not in COLTS:
        eps *= 0.5

    def step(i: int) -> None:
        draws = Draws(0, i, size=len(x))
        ramp = task.kappa
        batch = Batch(x=x, y=y, eps=eps, kappa=task.kappa, ramp=ramp, risen=ramp, stage=task.stage, draws=draws)
        terms = config.loss(chain, batch)
        optimiser.zero_grad(set_to_none=True)
        terms.total.backward()
        optimiser.step()

    return step


def _plain_step(setting: str) -> Step:
    """What one would write without thinking about speed: 8 steps of PGD with autograd, then a step of SGD."""
    import torch
    from torch.nn.functional import cross_entropy

    from surebound.network.architectures import architecture

    x, y = _images(setting)
    torch.manual_seed(0)
    net = architecture(f"conv-{setting}", in_shape=SHAPE, classes=CLASSES, mean=(0.5,) * 3, std=(0.2,) * 3)
    optimiser = torch.optim.SGD(net.parameters(), lr=1e-6, momentum=0.9)
    eps = 2.1 * 2 / 255

    def step(i: int) -> None:
        adversarial = (x + eps * (2 * torch.rand_like(x) - 1)).clamp(0, 1)
        for _ in range(8):
            adversarial.requires_grad_(True)
            (gradient,) = torch.autograd.grad(cross_entropy(net(adversarial), y), adversarial)
            moved = adversarial.detach() + 0.25 * eps * gradient.sign()
            adversarial = torch.max(torch.min(moved, x + eps), x - eps).clamp(0, 1)
        optimiser.zero_grad()
        cross_entropy(net(adversarial), y).backward()
        optimiser.step()

    return step


def _images(setting: str) -> tuple["Tensor", "Tensor"]:
    import torch

    size = 100 if setting == "2-255" else 150
    generator = torch.Generator().manual_seed(0)
    return torch.rand(size, *SHAPE, generator=generator), torch.randint(0, CLASSES, (size,), generator=generator)


def _flops(step: Step) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        step(0)
    return int(counter.get_total_flops())


def _measure(
    steps: dict[Task, Step], flops: dict[Task, int], rounds: int
) -> tuple[dict[Task, float], dict[Task, float]]:
    """The best seconds of each step, and the median share that its rate has of the matrix products beside it."""
    times: dict[Task, list[float]] = {task: [] for task in steps}
    shares: dict[Task, list[float]] = {task: [] for task in steps}
    for index in range(rounds):
        for task, step in steps.items():
            if times[task] and min(times[task]) > LONG:
                continue
            begin = time.perf_counter()
            step(index)
            times[task].append(time.perf_counter() - begin)
            shares[task].append(flops[task] / times[task][-1] / products_rate(times[task][-1]))
    return {task: min(found) for task, found in times.items()}, {task: median(found) for task, found in shares.items()}


def _table(
    setting: str,
    tasks: list[Task],
    plain: Task,
    best: dict[Task, float],
    flops: dict[Task, int],
    shares: dict[Task, float],
) -> str:
    size = len(_images(setting)[0])
    rows = [
        [
            task.name,
            f"{task.kappa:g}",
            f"{best[task] * 1e3:.0f}",
            f"{size / best[task]:.0f}",
            f"{best[task] / best[plain]:.2f}",
            f"{flops[task] / 1e9:.1f}",
            f"{shares[task]:.0%}",
        ]
        for task in tasks
    ]
    header = ["method", "κ", "ms per step", "images/s", "÷ plain PGD", "GFLOP", "of SGEMM"]
    return f"## `conv-{setting}`, batch {size}\n\n{markdown_table(header, rows)}"


def cost(seconds: dict[tuple[str, float, int], float], setting: str) -> list[str]:
    """A row on whole trainings: seconds per step of a method at a κ in a stage, times the paper's epochs."""
    if not all((method, 1.0, 0) in seconds for method in ("ibp-r", *COLTS)):
        return []
    steps = 50_000 // len(_images(setting)[0])
    mixed, rest = seconds["ibp-r", 0.5, 0], seconds["ibp-r", 1.0, 0]
    ibp_r = steps * (MIXING * mixed + (EPOCHS - MIXING) * rest)
    port, original = (
        steps
        * sum(
            STAGE_MIXING * seconds[method, 0.5, j] + (STAGE_EPOCHS - STAGE_MIXING) * seconds[method, 1.0, j]
            for j in range(STAGES[setting])
        )
        for method in COLTS
    )
    hours = [f"{total / 3600:.1f}" for total in (ibp_r, port, original)]
    ratios = [
        f"{ibp_r / port:.2f}",
        f"{PAPER_RATIO[setting]:.2f}",
        f"{original / port:.2f}",
        f"{PAPER_GAIN[setting]:.1f}",
    ]
    return [setting.replace("-", "/"), *hours, *ratios]


def _cost_report(costs: list[list[str]], where: str, command: str) -> str:
    header = ["ε", "IBP-R, h", "COLT, h", "original COLT, h", "IBP-R ÷ COLT", "paper", "original ÷ COLT", "paper ‡"]
    return f"""# Training time of IBP-R and of COLT

{where}

Hours for the whole of the paper's training on these cores: milliseconds per step, measured in turns in one run
(`train_step.md`), times the steps of the paper's epochs. IBP-R has {EPOCHS} epochs, {MIXING} of them with κ below 1;
COLT has 4 stages at 2/255 and 3 at 8/255, of {STAGE_EPOCHS} epochs, {STAGE_MIXING} of them with κ below 1. COLT is the
paper's port (geometric means), the original that of its authors (medians), both in the same code here. The paper's
ratios are of its own runs on a GPU (table 1); its footnote ‡ compares the port in JAX with the authors' code in
PyTorch, so that its gain is not the estimator's alone.

{markdown_table(header, costs)}
{command}"""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--methods", nargs="+", metavar="METHOD", help="(default: all)")
    parser.add_argument("--settings", nargs="+", choices=list(STAGES), default=list(STAGES))
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the reports")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
