"""Workers as processes of this machine, one a device. Imports no torch.

Processes come from the standard library's `multiprocessing` with `spawn`; each has a pipe of its
own, so one that is killed in the middle of a message disturbs no other.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType

from sanawm.notes import Notes

from .engine import RETRIES, Ended, OnBlock, lost_outcome
from .jobs import Job, Outcome, WorkerSetup

#: Names the devices that a process sees, for CUDA.
VISIBLE = "CUDA_VISIBLE_DEVICES"
_CONTEXT = multiprocessing.get_context("spawn")


class Slot:
    """A process, the end of its pipe, and the job it is at."""

    def __init__(self, number: int, setup: WorkerSetup, devices: str | None) -> None:
        self.number = number
        self.job: Job | None = None
        self.deaths = 0
        self._setup = setup
        self._devices = devices
        self.start()

    def start(self) -> None:
        """Start the process, again if it died."""
        here, there = _CONTEXT.Pipe()
        self.pipe: Connection = here
        self.process: SpawnProcess = _CONTEXT.Process(
            target=serve,
            args=(there, self._setup, self._devices),
            name=f"sanawm-worker-{self.number + 1}",
            daemon=True,
        )
        self.process.start()
        there.close()  # so that the death of the process is the end of the pipe

    def why_dead(self) -> str:
        """Return how the process ended."""
        self.process.join()
        code = self.process.exitcode or 0
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


class LocalEngine:
    """Run `slots` worker processes; `devices` are what each sees as CUDA devices, None for all."""

    def __init__(
        self,
        slots: int,
        setup: WorkerSetup,
        *,
        notes: Notes,
        on_block: OnBlock,
        devices: Sequence[str] | None = None,
    ) -> None:
        self.slots = slots
        self._notes = notes
        self._on_block = on_block
        self._ended: list[Ended] = []
        self._stopped = False
        chosen: list[str | None] = [None] * slots if devices is None else list(devices)
        self._slots = [Slot(n, setup, chosen[n]) for n in range(slots)]

    def name(self, slot: int) -> str:
        """Return `worker 1` and so on."""
        return f"worker {slot + 1}"

    def submit(self, slot: int, job: Job) -> None:
        """Send a job to a free process."""
        self._slots[slot].job = job
        self._slots[slot].deaths = 0
        self._send(self._slots[slot])

    def wait(self, seconds: float) -> list[Ended]:
        """Read what the processes say, and replace those that died."""
        waiting = {slot.pipe: slot for slot in self._slots if slot.job is not None}
        if waiting and not self._ended:
            for pipe in wait(list(waiting), timeout=seconds):
                assert isinstance(pipe, Connection)
                self._read(waiting[pipe])
        ended, self._ended = self._ended, []
        return ended

    def stop(self, code: int) -> None:
        """Tell every process; one that is starting up ends at once."""
        self._stopped = True
        for slot in self._slots:
            if slot.process.is_alive() and slot.process.pid is not None:
                slot.process.terminate()

    def close(self) -> None:
        """End all processes: an idle one when its pipe closes, a busy one at once."""
        for slot in self._slots:
            if slot.job is not None:
                slot.process.kill()
            slot.pipe.close()
        for slot in self._slots:
            slot.process.join(timeout=10)
            if slot.process.is_alive():
                slot.process.kill()
                slot.process.join()

    def _send(self, slot: Slot) -> None:
        with suppress(OSError):  # a dead process shows at the next read
            slot.pipe.send(slot.job)

    def _read(self, slot: Slot) -> None:
        job = slot.job
        assert job is not None
        try:
            message = slot.pipe.recv()
        except (EOFError, OSError):
            self._died(slot, job)
            return
        if isinstance(message, Outcome):
            slot.job = None
            self._ended.append(Ended(slot.number, job, message))
        else:
            self._on_block(slot.number, *message)

    def _died(self, slot: Slot, job: Job) -> None:
        slot.pipe.close()
        reason = slot.why_dead()
        slot.deaths += 1
        if self._stopped:
            slot.job = None
            outcome = Outcome(job.id, job.line, "interrupted", error=f"its worker ended ({reason})")
            self._ended.append(Ended(slot.number, job, outcome))
            return
        slot.start()
        if slot.deaths > RETRIES:
            slot.job = None
            self._ended.append(Ended(slot.number, job, lost_outcome(job, reason), lost=True))
            return
        self._notes.warn(
            f"{self.name(slot.number)} died ({reason}) at job {job.id}; "
            f"try {slot.deaths + 1} of {RETRIES + 1} starts"
        )
        self._send(slot)


def serve(pipe: Connection, setup: WorkerSetup, devices: str | None) -> None:
    """Make the jobs that come through the pipe until it closes: the life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the batch, which tells us
    if devices is not None:
        os.environ[VISIBLE] = devices  # before CUDA starts
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from .worker import Worker

    worker = Worker(setup)

    def on_term(number: int, frame: FrameType | None) -> None:
        worker.stop(128 + number)

    signal.signal(signal.SIGTERM, on_term)
    with suppress(EOFError, OSError):
        while True:
            job = pipe.recv()
            pipe.send(worker.run(job, lambda done, blocks: pipe.send((done, blocks))))


def _end_with_parent() -> None:
    """End this process when the batch is gone: what it was at is kept, and made by the next one."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
