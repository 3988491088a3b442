"""Tasks that workers can import: what they do is in their first word."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surebound.work import Call, Do


@dataclass(frozen=True)
class Arithmetic:
    """A setup: tasks are (word, number)."""

    base: int
    seen: Path | None = None  # a file that gets a line for each setup

    def __call__(self) -> Do[tuple[str, Any], Any]:
        if self.seen is not None:
            with self.seen.open("a") as file:
                file.write(f"{os.getpid()}\n")
        return self._do

    def _do(self, task: tuple[str, Any], call: Call) -> Any:
        match task:
            case "add", value:
                return self.base + value
            case "say", value:
                for k in range(value):
                    call.say(k)
                return "said"
            case "raise", value:
                raise ValueError(value)
            case "die", _:
                os.kill(os.getpid(), signal.SIGKILL)
            case "die once", path:
                if not Path(path).exists():
                    Path(path).touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return "alive"
            case "stop", path:  # or be stopped
                Path(path).touch()
                while not call.stopping():
                    time.sleep(0.01)
                Path(path).write_text("stopped")
                return "stopped"
            case "where", seconds:
                import ray

                time.sleep(seconds)
                return ray.get_runtime_context().get_node_id()
            case "threads", _:
                import torch

                return torch.get_num_threads()
        raise KeyError(task)
