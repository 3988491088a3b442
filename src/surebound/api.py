"""The Python interface: `load`, `verify`, `bounds`, `train`, `certify`.

Heavy imports happen inside the calls, so `import surebound` is quick.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import inf, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from surebound.domain.sets import as_numbers
from surebound.errors import OutOfTimeError, UsageError
from surebound.limits import Deadline
from surebound.problem import Ball, Domain, Property, Robustness, Verdict

if TYPE_CHECKING:
    from torch import nn

    from surebound.bounds.result import LayerBounds
    from surebound.data.dataset import Dataset
    from surebound.evaluate.certify import Certification
    from surebound.evaluate.certifying import OnProgress as OnCertifyProgress
    from surebound.network.model import Model
    from surebound.train.config import TrainConfig
    from surebound.train.loop import OnProgress as OnTrainProgress
    from surebound.train.run import TrainResult
    from surebound.verify.progress import OnProgress


def load(
    source: "str | Path | nn.Module", *, input_shape: Sequence[int] | Sequence[Sequence[int]] | None = None
) -> "Model":
    """A network from an ONNX file (``.onnx``, ``.onnx.gz``) or a PyTorch module.

    Args:
        source: the file's path, or a module. A module is read, and later run, in evaluation mode, as a copy: it stays
            as it is.
        input_shape: one input's shape without the batch; needed for a module, not allowed for a file, and a list of
            such shapes for a module that takes several tensors. Its outputs may be several, too: a tuple or list of
            tensors.

    Several inputs or outputs, of a file or module, are one vector each in everything that follows, one tensor after the
    other; `ports` of what is returned has their names and shapes.
    """
    if isinstance(source, str | Path):
        from surebound.load.onnx import load_model

        if input_shape is not None:
            raise UsageError(f"input_shape is for PyTorch modules; expected none beside the file '{source}'")
        return load_model(source)
    from torch import nn

    from surebound.load.torch import module_model

    if not isinstance(source, nn.Module):
        raise UsageError(f"load got a {type(source).__name__}; expected the path of an ONNX file, or a PyTorch module")
    if input_shape is None:
        raise UsageError("loading a PyTorch module needs input_shape, the shape of one input without the batch")
    _expect_lengths(input_shape)
    return module_model(source, input_shape)


def _expect_lengths(input_shape: Sequence[int] | Sequence[Sequence[int]]) -> None:
    """Refuse what torch would take for a length to be found out, or for nothing."""
    parts = input_shape if isinstance(input_shape, Sequence) else ()
    lengths = [length for part in parts for length in (part if isinstance(part, Sequence) else (part,))]
    if any(isinstance(length, int) and length < 1 for length in lengths):
        raise UsageError(
            f"input_shape is {input_shape!r}; expected lengths from 1 up, without the batch, such as (3, 32, 32)"
        )


def verify(
    net: "Model | str | Path",
    problem: Property | Robustness | str | Path,
    *,
    timeout: float | None = None,
    branching: str = "auto",
    search: str = "default",
    seed: int = 0,
    memory: int | None = None,
    early_stop: bool = False,
    workers: int | str | None = None,
    cluster: str | None = None,
    resources: Mapping[str, Any] | None = None,
    proof: bool = False,
    device: str = "cpu",
    on_progress: "OnProgress | None" = None,
) -> Verdict:
    """Decide whether a network satisfies a property.

    Args:
        net: what `load` returned, or the path of an ONNX file.
        problem: a `Robustness` or `Property`, or the path of a VNN-LIB file.
        timeout: seconds after which to answer ``timeout``, the reading of files included; None for no limit.
        branching: the neuron to split (``auto``, ``upb``, ``fsb``, ``sr``, ``mixture``), or ``input`` (bisect the box).
        search: ``default``, or ``paper``: as the paper did, without what came later (`surebound.verify.strategy`).
        seed: for the attacks, the only source of randomness.
        memory: bytes for the search's queue, which goes to disk beyond; None for a quarter of what is free.
        early_stop: answer ``timeout`` as soon as the search is not expected to end in time.
        workers: processes of one thread each that share a search that takes longer; ``auto``: as many as torch has
            threads, if a trial says that they are faster than these.
        cluster: instead, the address of a Ray cluster, as for `certify`, with its `resources`.
        proof: keep a proof of ``unsat`` in ``verdict.proof``, whose ``save`` writes it for `surebound.check`.
        device: where bounds and attacks are computed: ``cpu``, or ``cuda``, ``cuda:1`` and so on.
        on_progress: called now and then with a `surebound.verify.progress.Progress`.
    """
    from surebound.verify.options import Options
    from surebound.verify.pipeline import verify as run

    begin = time.monotonic()
    if not isinstance(problem, Property | Robustness | str | Path):
        raise UsageError(
            f"verify got a {type(problem).__name__} for a problem; expected a Robustness or Property, or the path of a "
            "VNN-LIB file"
        )
    options = Options.of(
        search,
        timeout=timeout,
        branching=branching,
        seed=seed,
        memory=memory,
        early_stop=early_stop,
        workers=workers,
        cluster=cluster,
        resources=resources,
        proof=proof,
        device=device,
    )
    end = inf if timeout is None else begin + timeout
    model = None if isinstance(net, str | Path) else _loaded(net)
    try:
        if isinstance(problem, str | Path):
            from surebound.load.vnnlib import read_property

            problem = read_property(problem, deadline=Deadline(end, f"reading '{problem}'"))
        if model is None:
            from surebound.load.onnx import load_model

            inputs = problem.inputs if isinstance(problem, Property) else np.size(problem.x)
            model = load_model(str(net), inputs=inputs, deadline=Deadline(end, f"reading '{net}'"))
    except OutOfTimeError as error:
        return Verdict(status="timeout", seconds=time.monotonic() - begin, seed=seed, reason=str(error))
    reading = time.monotonic() - begin
    if timeout is not None:
        options = replace(options, timeout=max(timeout - reading, 0.01))
    verdict = run(model, problem, options, on_progress)
    return replace(verdict, seconds=verdict.seconds + reading)


def _loaded(net: "Model | str | Path") -> "Model":
    """What `load` returned, or returns for a path; anything else is a mistake that deserves a sentence."""
    from surebound.network.model import Model

    if isinstance(net, str | Path):
        return load(net)
    if not isinstance(net, Model):
        raise UsageError(
            f"got a {type(net).__name__} for a network; expected the path of an ONNX file, or what surebound.load "
            "returned (for a PyTorch module: surebound.load(module, input_shape=…))"
        )
    return net


def bounds(
    net: "Model | str | Path",
    box: Domain | tuple[ArrayLike, ArrayLike],
    *,
    method: str = "alpha-crown",
    device: str = "cpu",
) -> "LayerBounds":
    """Sound lower and upper bounds on every ReLU layer's inputs and, last, on the outputs.

    Args:
        net: what `load` returned, or the path of an ONNX file.
        box: a `Box`, or lower and upper arrays of the network's input shape, with or without a leading batch of boxes;
            or a `Ball`, for the first four methods.
        method: ``interval``, ``fastlin``, ``crown``, ``alpha-crown``, ``deepz``, ``planet-lp`` or ``milp``.
        device: as for `verify`; the bounds are tensors there.
    """
    from surebound.bounds import BOUNDS, OVER_BALLS
    from surebound.bounds.around import Around
    from surebound.bounds.device import expect_exact, plain_convolutions
    from surebound.domain.balls import Balls

    if not isinstance(box, Domain) and not (isinstance(box, tuple | list) and len(box) == 2):
        raise UsageError(f"bounds got a {type(box).__name__} for a box; expected a Box or Ball, or (lower, upper)")
    expect_exact(device)
    model = _loaded(net).tensors(device)
    lower, upper = (box.lower, box.upper) if isinstance(box, Domain) else box
    if isinstance(box, Ball) and method in BOUNDS and method not in OVER_BALLS:
        raise UsageError(f"the method '{method}' is for boxes; expected, for a ball, one of: {', '.join(OVER_BALLS)}")
    shape = (-1, *model.network.input_shape)
    ends = []
    for name, end in (("lower", lower), ("upper", upper)):
        array = as_numbers(end, f"the box's {name} end")
        if array.size == 0 or array.size % model.network.inputs:
            inputs = model.network.inputs
            raise UsageError(
                f"the box's {name} end has {array.size} numbers; expected a multiple of the {inputs} inputs"
            )
        if not _fits(array.shape, model.network.input_shape):
            raise UsageError(
                f"the box's {name} end has the shape {array.shape}; expected {model.network.input_shape}, with or "
                "without a leading batch of boxes, or flat in that order"
            )
        if not np.isfinite(array).all():
            raise UsageError(f"the box's {name} end is NaN or infinite; expected finite numbers")
        ends.append(model.network.array(array.reshape(shape)))
    if ends[0].shape != ends[1].shape or bool((ends[0] > ends[1]).any()):
        raise UsageError("a box needs lower and upper ends of one shape, with lower nowhere above upper")
    with plain_convolutions(device):
        if isinstance(box, Ball):
            around = Around(model.network, Balls.of([box], device))
            return BOUNDS[method](model.network, ends[0], ends[1], around=around)
        return BOUNDS[method](model.network, ends[0], ends[1])


def _fits(given: Sequence[int], expected: Sequence[int]) -> bool:
    """Whether numbers of some shape are in the order of the network's input, or of several: axes of 1 do not matter,
    nor does any order to a network whose input is flat."""
    got, wanted = ([size for size in shape if size != 1] for shape in (given, expected))
    return min(len(got), len(wanted)) <= 1 or wanted in (got, got[1:]) or got[1:] == [prod(wanted)]


def train(
    config: "TrainConfig | str | Path",
    *,
    out: str | Path,
    settings: Sequence[str] = (),
    dataset: "Dataset | None" = None,
    module: "nn.Module | None" = None,
    data_dir: str | Path | None = None,
    resume: bool = False,
    on_progress: "OnTrainProgress | None" = None,
) -> "TrainResult":
    """Train a network whose robustness can be proved, and write it to a folder.

    Args:
        config: the name of a preset, the path of a TOML file (ending in .toml), or a `TrainConfig`.
        out: the folder to write; see `surebound.train.folder` for what is in it.
        settings: changes to a preset or file, each ``key=value``, such as ``"schedule.epochs=3"``.
        dataset: images of your own (`surebound.data.own.dataset_from_tensors`) instead of the configuration's.
        module: a network of your own instead of the configuration's, on pixels in [0, 1]: any module without loops that
            torch.fx can trace and that can be verified, whose parameters are those of convolutions, matrices, batch
            norms and PReLUs. Residual connections, pooling and all activations are fine. It is trained in place.
        data_dir: where data sets are; by default $SUREBOUND_DATA, then ~/.cache/surebound.
        resume: go on with the run in `out` from its last checkpoint, or start it if there is none.
        on_progress: called after every step with a `surebound.train.loop.TrainProgress`.
    """
    from surebound.data.dataset import Dataset
    from surebound.train.config import TrainConfig, read_config
    from surebound.train.run import run

    folder = _path(out, "out", "the folder to write")
    if dataset is not None and not isinstance(dataset, Dataset):
        raise UsageError(
            f"train got a {type(dataset).__name__} for a data set; expected one made with surebound.data.own, or, for "
            "one that has a name, settings=['data.name=NAME']"
        )
    if isinstance(settings, str):
        raise UsageError(f"settings is {settings!r}; expected a list of changes, such as [{settings!r}]")
    if not isinstance(config, TrainConfig | str | Path):
        raise UsageError(
            f"train got a {type(config).__name__} for a configuration; expected the name of a preset, the path of a "
            "TOML file or a TrainConfig"
        )
    if isinstance(config, TrainConfig):
        if settings:
            raise UsageError("settings change a preset or a file; expected none beside a TrainConfig")
    else:
        config = read_config(config, settings)
    return run(
        config,
        folder,
        dataset=dataset,
        module=module,
        data_dir=None if data_dir is None else Path(data_dir),
        resume=resume,
        on_progress=on_progress,
    )


def _path(value: object, name: str, use: str) -> Path:
    """The path that an argument must be."""
    if not isinstance(value, str | Path) or value == "" or "\0" in str(value):
        raise UsageError(f"{name} is {value!r}; expected the path of {use}")
    return Path(value)


def certify(
    model: str | Path,
    dataset: "Dataset | str | Path",
    *,
    eps: float | str | Fraction,
    norm: float | str = "inf",
    store: str | Path,
    images: Sequence[int] | None = None,
    timeout: float = 60.0,
    branching: str = "auto",
    search: str = "default",
    attack: str = "mi-fgsm",
    seed: int = 0,
    early_stop: bool = True,
    radius_search: bool = False,
    workers: int | None = None,
    cluster: str | None = None,
    resources: Mapping[str, Any] | None = None,
    resume: bool = False,
    proofs: str | Path | None = None,
    check_proofs: bool = False,
    memory: int | None = None,
    device: str = "cpu",
    data_dir: str | Path | None = None,
    on_progress: "OnCertifyProgress | None" = None,
) -> "Certification":
    """Certify test images: how many a network gets right, keeps right under attack, and provably keeps right.

    Args:
        model: an ONNX file, or the output folder of a training run.
        dataset: the name of a data set, a folder, or one made with `surebound.data.own`.
        eps: the radius, taken exactly: ``"2/255"``.
        norm: in which it is measured: ``inf``, ``2`` or ``1``.
        store: the SQLite file that rows are written to as they finish.
        images: indices of test images; None for all.
        timeout: seconds of search for each image.
        branching: as for `verify`.
        search: as for `verify`; with ``paper``, ``mi-fgsm`` draws as the paper does.
        attack: ``mi-fgsm`` or ``pgd``, on what one backward pass does not prove.
        seed: for the attacks, the only source of randomness.
        early_stop: give up on an image as soon as its search is not expected to end in time.
        radius_search: also find, by bisection up to `eps`, the largest radius proved and the smallest one broken.
        workers: processes, each with one thread; None or 1 works in this process.
        cluster: instead, the address of a Ray cluster: ``"HOST:PORT"``, or ``"auto"`` for one that runs here or is
            started for this call.
        resources: what each task takes of the cluster, as Ray's own options: ``{"num_gpus": 1}``.
        resume: go on with results that the store has, instead of complaining about them.
        proofs: a folder for a proof of each image that is verified, and the property it is about. Images that were
            verified before and have no proof there are verified again.
        check_proofs: have `surebound.check` check each proof as soon as it is written; an image whose proof it refuses
            is not verified.
        memory: bytes that each process may take, about; None for as much as is there.
        device: as for `verify`; all workers compute on it.
        data_dir: where data sets are; by default $SUREBOUND_DATA, then ~/.cache/surebound.
        on_progress: called now and then with a `surebound.evaluate.certifying.CertifyProgress`.
    """
    from surebound.data import load_dataset
    from surebound.data.dataset import Dataset
    from surebound.evaluate.certify import certify as run
    from surebound.evaluate.room import Room
    from surebound.evaluate.stages import Settings
    from surebound.evaluate.task import Task, exact
    from surebound.work import choose

    if not isinstance(model, str | Path):
        raise UsageError(
            f"certify got a {type(model).__name__} for a model; expected the path of an ONNX file or training folder"
        )
    file = _path(store, "store", "the SQLite file of results")
    engine = choose(workers=workers, cluster=cluster, resources=resources)
    if isinstance(dataset, str | Path):
        dataset = load_dataset(str(dataset), data_dir)
    elif not isinstance(dataset, Dataset):
        raise UsageError(
            f"certify got a {type(dataset).__name__} for a data set; expected a name, a folder, or one made with "
            "surebound.data.own"
        )
    settings = Settings.of(
        search,
        timeout=timeout,
        branching=branching,
        attack=attack,
        seed=seed,
        early_stop=early_stop,
        radius_search=radius_search,
        norm=norm,
    )
    chosen = range(len(dataset.test)) if images is None else images
    task = Task(
        model=Path(model),
        dataset=dataset,
        eps=exact(eps, norm),
        images=chosen,
        settings=settings,
        proofs=None if proofs is None else _path(proofs, "proofs", "the folder for proofs"),
        check_proofs=check_proofs,
        room=Room(memory),
        device=device,
    )
    return run(task, file, engine=engine, resume=resume, on_progress=on_progress)
