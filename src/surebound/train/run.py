"""A run from its configuration to its output folder."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from surebound.bounds.device import expect_usable
from surebound.data import load_dataset
from surebound.data.dataset import Dataset
from surebound.errors import NetworkError, ResourceError, UsageError
from surebound.load.torch_runs import FAILURES, expect_same_calls
from surebound.load.torch_trace import copied, expect_module
from surebound.memory import is_out_of_memory
from surebound.network.architectures import architecture
from surebound.train.config import OWN, TrainConfig
from surebound.train.export import onnx_content
from surebound.train.folder import Folder
from surebound.train.initialise import initialise_network
from surebound.train.learner import Learner
from surebound.train.loop import Loop, OnProgress
from surebound.train.parallel import World, first_alone, join, leave
from surebound.train.read import traced
from surebound.train.validate import Validation


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainResult:
    """What a run leaves behind."""

    folder: Path
    module: nn.Module  # in evaluation mode
    validation: Validation | None  # the last one; None in processes other than the first
    seconds: float  # of this process, since it started or resumed


def run(
    config: TrainConfig,
    out: Path,
    *,
    dataset: Dataset | None = None,
    module: nn.Module | None = None,
    data_dir: Path | None = None,
    resume: bool = False,
    on_progress: OnProgress | None = None,
) -> TrainResult:
    """Train, and write the output folder. Under torchrun, all processes call this."""
    begin = time.monotonic()
    expect_usable(config.run.device, f"run.device is '{config.run.device}', which")
    device = torch.device(config.run.device)
    if dataset is None:
        dataset = load_dataset(config.data.name, data_dir)
    else:
        config = replace(config, data=replace(config.data, name=dataset.name))
    if module is None:
        module = network(config, dataset)
    else:
        config = replace(config, network=replace(config.network, name=OWN))
    if len(dataset.classes) < 2:
        raise UsageError(
            f"data set '{dataset.name}' has {len(dataset.classes)} class; a classifier needs at least two classes"
        )
    expect_module(module)
    given = copied(module)
    learner = Learner(module, dataset.shape)
    _try_out(given, learner, len(dataset.classes))
    learner.module.to(device)
    folder = Folder(out, config)
    world = join(device)
    try:
        _share(learner.module, world)
        loop = Loop(config, learner, dataset, folder, world=world, on_progress=on_progress)
        first_alone(world, device, folder.reopen if resume else folder.begin)
        learner.module.train()
        try:
            validation = loop.run(resume=resume)
        except Exception as error:
            if world.is_main and not loop.steps_made:
                folder.forget()
            if is_out_of_memory(error):
                raise ResourceError("training ran out of memory; expected it to fit (see data.batch)") from error
            raise
        learner.module.eval()
        learner.release()
        # The others wait: a process that leaves while the first still works may be torn down in the middle of what
        # its communication threads have to release.
        first_alone(world, device, lambda: folder.finish(learner.module.cpu(), learner.in_shape))
        return TrainResult(folder=out, module=learner.module, validation=validation, seconds=time.monotonic() - begin)
    finally:
        folder.release()
        leave()


def network(config: TrainConfig, dataset: Dataset) -> nn.Module:
    """The network of a run before its first step."""
    if config.network.name == OWN:
        raise UsageError("network.name is 'own', for a module of your own; expected surebound.train(…, module=…)")
    torch.manual_seed(config.seed)
    made = architecture(
        config.network.name,
        in_shape=dataset.shape,
        classes=len(dataset.classes),
        mean=dataset.mean,
        std=dataset.std,
    )
    initialise_network(made, config.network.initialisation)
    return made


def _try_out(given: nn.Module, learner: Learner, classes: int) -> None:
    """Refuse a network that cannot run on the images, means something else to torch than to us, or cannot be written,
    before training."""
    shape, generator = learner.in_shape, torch.Generator("cpu").manual_seed(0)
    x = torch.rand(2, *shape, generator=generator, device="cpu").to(next(given.parameters()).dtype)
    try:
        with torch.no_grad():
            single, expected = given(x[:1]), given(x)
            found = learner.layers().logits(x.to(next(learner.module.parameters()).device)).cpu()
        expect_same_calls(given, traced(copied(given)), [x[:1]], type(given).__name__)
    except FAILURES as error:
        reason = str(error).partition("\n")[0]
        raise NetworkError(f"the network cannot run on images of shape {list(shape)}: {reason}") from error
    for images, logits in ((1, single), (2, expected)):
        if not isinstance(logits, Tensor) or logits.shape != (images, classes):
            outputs = list(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
            raise NetworkError(
                f"the network returns {outputs} for a batch of {images}; expected a tensor of shape"
                f" {[images, classes]}, a number for each class"
            )
    difference, largest = float((expected - found).abs().max()), float(expected.abs().max())
    if not difference <= 1e-3 * largest + 1e-6:
        raise NetworkError(
            f"the logits that torch computes differ by {difference:.3g} from those of the calls that torch.fx records; "
            "expected the same (does forward depend on the numbers it is given, or on chance?)"
        )
    onnx_content(given.float(), shape, (classes,))


def _share(module: nn.Module, world: World) -> None:
    """All processes begin with the weights of the first."""
    if world.size > 1:
        for tensor in module.state_dict().values():
            dist.broadcast(tensor, 0)
