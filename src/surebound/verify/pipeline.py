"""Verification from start to end: a property becomes questions, one for each box, which go through the cascade."""

from collections.abc import Sequence

import numpy as np

from surebound.bounds.device import plain_convolutions
from surebound.errors import UsageError
from surebound.network.graph import Network
from surebound.network.model import Model
from surebound.problem import Property, Robustness, Status, Verdict, by_box, listed
from surebound.proof.record import BoxRecord
from surebound.proof.write import Proof
from surebound.verify.begun import Begun
from surebound.verify.cascade import Question, Settled, run
from surebound.verify.clock import Clock
from surebound.verify.confirm import expect_agreement
from surebound.verify.engine import Engine
from surebound.verify.options import Options
from surebound.verify.progress import OnProgress
from surebound.verify.stages import closing, screening


def verify(
    model: Model,
    problem: Property | Robustness,
    options: Options,
    on_progress: OnProgress | None = None,
    clock: Clock | None = None,
    begun: Begun | None = None,
) -> Verdict:
    """Decide a property. See `surebound.verify` for the public form.

    The `clock` may have started earlier: that time counts towards the timeout. `begun` is a bisection over some of the
    property's regions, to go on with; it is ignored if a proof is recorded.
    """
    clock = Clock(options.timeout, on_progress) if clock is None else clock
    model = model.tensors(options.device)
    network = model.network
    prop = _expect_scores(model, problem) if isinstance(problem, Robustness) else problem
    model.check_fits(prop)
    if prop.regions:
        options.check_norm(prop.regions[0].box.norm)
    questions = _questions(prop, network if options.proof else None)
    if begun is not None and not options.proof:
        for question in questions:
            question.begun = begun.tensors(options.device)
    with plain_convolutions(options.device):
        outcome = _decide(Engine(model, options, clock), questions)
        if outcome.end == "proved":
            expect_agreement(model, prop.regions)
    return Verdict(
        status=_STATUS[outcome.end],
        counterexample=outcome.counterexample,
        seconds=clock.elapsed,
        seconds_by_phase=clock.phases,
        subproblems=sum(question.subproblems for question in questions),
        lower_bound=outcome.lower_bound if np.isfinite(outcome.lower_bound) and outcome.end != "proved" else None,
        branching=next((question.branching for question in reversed(questions) if question.branching), None),
        searched_by=next((question.searched_by for question in reversed(questions) if question.searched_by), ""),
        seed=options.seed,
        reason=outcome.reason if questions else f"nothing can violate the property: {prop.vacuous}",
        proof=_proof(network, questions) if options.proof and outcome.end == "proved" else None,
    )


def _expect_scores(model: Model, problem: Robustness) -> Property:
    """The property, if the network has one output to compare the elements of."""
    if len(model.ports.outputs) > 1:
        raise UsageError(
            f"robustness compares the scores of classes, but '{model.source}' has the outputs "
            f"{listed(model.ports.outputs)}; expected one"
        )
    [port] = model.ports.inputs[:1]
    return problem.to_property(model.network.outputs, port.shape if len(model.ports.inputs) == 1 else None)


_STATUS: dict[str, Status] = {"proved": "unsat", "violated": "sat", "time": "timeout", "undecided": "unknown"}


def _decide(engine: Engine, questions: Sequence[Question]) -> Settled:
    """All questions: together as far as they share the work, then one by one."""
    run(screening(engine), questions)
    total = Settled(stage="none", end="proved")
    for question in questions:
        run(closing(engine), [question])
        assert question.settled is not None  # the last stage settles everything
        total = _merge(total, question.settled)
        if total.end in ("violated", "time"):
            break
    return total


def _questions(prop: Property, recorded: Network | None) -> list[Question]:
    """A question for each box, which is then bounded once.

    Those of a network that is recorded are to write down their proofs.
    """
    questions = []
    for box, numbers in enumerate(by_box(prop.regions)):
        regions = [prop.regions[number] for number in numbers]
        if prop.places is not None:
            box, numbers = prop.places[numbers[0]][1], [prop.places[number][0] for number in numbers]
        if not regions[0].box.empty:
            questions.append(Question(lambda regions=regions: regions))  # type: ignore[misc]
            questions[-1].record = None if recorded is None else BoxRecord(recorded, box, numbers)
    return questions


def _proof(network: Network, questions: Sequence[Question]) -> Proof | None:
    """What was written down, unless some stage proved a region and wrote nothing."""
    records = [question.record for question in questions if question.record is not None]
    return Proof(records, network.widths) if all(record.complete for record in records) else None


_WORST = ("proved", "undecided", "time", "violated")


def _merge(total: Settled, new: Settled) -> Settled:
    """Of two parts of a property: it holds if both do, and is violated if either is."""
    return Settled(
        stage=new.stage,
        end=max(total.end, new.end, key=_WORST.index),
        counterexample=new.counterexample or total.counterexample,
        lower_bound=min(total.lower_bound, new.lower_bound),
        reason=new.reason or total.reason,
    )
