"""One way to hand out work, whoever does it: this process, others on this machine, or a cluster.

A *task* is data; doing it gives a result and changes nothing else, so that it may be done again wherever a worker died.
What all tasks of a kind share (a network, images) is in a *setup*: called once in each worker, it returns the function
that does tasks.

    class Setup:                                        # travels to workers: pickled, with all that it holds
        def __call__(self) -> Do[Task, Result]: ...     # loads what it needs, and returns a function

    def do(task: Task, call: Call) -> Result: ...       # may call.say(…) on the way, and look at call.stopping()

    with choose(workers=4).open(Setup()) as pool:       # Inline, Processes or Cluster: `work.engine`
        desk = Desk(pool)
        desk.add(task, rank=(0, 0.5))                   # tasks of the lowest rank go first; more may come at any time
        for event in desk.events():                     # until all is done
            match event:
                case Said(task, word): ...              # on its way
                case Done(task, result, seconds): ...
                case Failed(task, error, seconds): ...  # it raised, or its workers died (`WorkerLostError`)

`desk.stop(task)` asks for an early end, which the task notices by `call.stopping()`; it still returns a result. Leaving
the `with` ends whatever is under way, at once, or with the `grace` that a task was added with. The types are in
`work.task`; another engine is one file with a `Pool` in it, and a line in `work.engine`.
"""

from surebound.work.desk import Desk
from surebound.work.engine import choose
from surebound.work.task import Call, Do, Done, Engine, Event, Failed, Pool, Said, Setup

__all__ = ["Call", "Desk", "Do", "Done", "Engine", "Event", "Failed", "Pool", "Said", "Setup", "choose"]
