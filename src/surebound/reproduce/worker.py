"""A process that does jobs: `python -m surebound.reproduce.worker PLACE`, a job per line on stdin, replies on stdout.

Replies are JSON, one per line: {"ready": true} once; for each job {"share": …, "text": …} on the way, then {"done": …}
or {"failed": "a sentence"}. The end of stdin means stop, whether the one who wrote to it stopped or was killed: a
training is saved first, everything else can be left as it is.
"""

import json
import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from queue import SimpleQueue
from typing import IO, Any, final

from surebound import interrupts
from surebound.errors import SureboundError
from surebound.reproduce.job import Job
from surebound.reproduce.place import Place

GRACE = 20.0  # seconds for a training to be saved in
_EVERY = 0.25  # seconds between two words on progress


@final
class _Orders:
    """Reads jobs while others are being done, so that the end of stdin is noticed at once."""

    def __init__(self) -> None:
        self.stopping = False
        self.current: Job | None = None
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            self._lines.put(line)
        self.stopping = True
        self._lines.put(None)
        late = time.monotonic() + GRACE
        while True:
            job = self.current
            if job is None or job.kind not in ("train", "try") or time.monotonic() > late:
                os._exit(0 if job is None else 1)
            time.sleep(0.05)

    def next(self) -> Job | None:
        self.current = None
        line = self._lines.get()
        if line is None or self.stopping:
            return None
        self.current = Job.from_json(line)
        return self.current


@final
class _Replies:
    """Writes to what was stdout; whatever libraries print goes to stderr instead."""

    def __init__(self) -> None:
        self._out: IO[str] = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self._said = 0.0

    def write(self, **reply: Any) -> None:
        with suppress(BrokenPipeError):  # nobody listens any more: stdin has ended, too, and stops what is under way
            self._out.write(json.dumps(reply) + "\n")

    def say(self, share: float, text: str) -> None:
        now = time.monotonic()
        if now - self._said >= _EVERY:
            self._said = now
            self.write(share=share, text=text)


def main() -> None:
    """Do jobs until stdin ends."""
    interrupts.ignore()
    replies, orders = _Replies(), _Orders()
    place = Place.from_json(sys.argv[1])

    import torch

    from surebound.memory import keep_memory
    from surebound.reproduce.perform import Performer, StoppedError

    torch.set_num_threads(1)
    keep_memory()
    replies.write(ready=True)
    performer: Performer | None = None
    while (job := orders.next()) is not None:
        try:
            performer = performer or Performer(place, lambda: orders.stopping)
            replies.write(done=performer.perform(job, replies.say))
        except StoppedError:
            break
        except SureboundError as error:
            replies.write(failed=" ".join(str(error).split()))
        except Exception as error:  # a bug, or the memory ran out: other jobs may still go well
            traceback.print_exc()
            replies.write(failed=" ".join(f"{type(error).__name__}: {error}".split()))


if __name__ == "__main__":
    main()
    os._exit(0)  # tearing torch down takes longer than many a job
