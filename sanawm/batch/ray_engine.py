"""Workers as actors of a Ray cluster, an existing one or one started here. Imports no torch.

Ray places the actors, restarts them when they die and runs the job of a dead one again; a job that
runs again continues from its own state. Only job and outcome travel: inputs, weights and outputs
are read and written by the actors, so they lie on a path that all machines share.
"""

from __future__ import annotations

import logging
import os
import signal
from contextlib import suppress
from importlib import import_module
from typing import Any

from sanawm.errors import MachineError
from sanawm.notes import Notes

from .engine import RETRIES, Ended, lost_outcome
from .jobs import Job, Outcome, WorkerSetup

#: Object store of a cluster started here: only jobs and outcomes go through it.
STORE_BYTES = 128 << 20
#: Calls in this group are answered while a job runs.
CONTROL = "control"


class RayEngine:
    """Run jobs in actors, each with `cpus` and `gpus`; as many as the cluster holds by default,
    and never more than `most`.

    address: `auto`, `HOST:PORT` or `ray://...`; None starts a cluster here (or joins that of
    RAY_ADDRESS). gpus None: one GPU each if the cluster has any.

    Raises `MachineError` without Ray, without the cluster, or when no node can hold one job.
    """

    def __init__(
        self,
        slots: int | None,
        setup: WorkerSetup,
        *,
        most: int,
        notes: Notes,
        address: str | None,
        gpus: float | None,
        cpus: float | None,
    ) -> None:
        self._jobs: dict[Any, tuple[int, Job]] = {}
        self._ray = _import_ray()
        _connect(self._ray, address, notes)
        try:
            has_gpus = self._ray.cluster_resources().get("GPU", 0) > 0
            need = {"CPU": cpus or 1.0, "GPU": float(has_gpus) if gpus is None else gpus}
            self.slots = min(slots or self._room(need), most)
            actor = _actor(self._ray).options(
                num_cpus=need["CPU"],
                num_gpus=need["GPU"],
                max_restarts=-1,
                max_task_retries=RETRIES,
            )
            self._actors = [actor.remote(setup) for _ in range(self.slots)]
        except BaseException:
            self._ray.shutdown()
            raise

    def _room(self, need: dict[str, float]) -> int:
        """Return how many jobs the nodes of the cluster hold at a time."""
        nodes = [n["Resources"] for n in self._ray.nodes() if n["Alive"]]
        room = sum(
            min(int(node.get(kind, 0) / count) for kind, count in need.items() if count)
            for node in nodes
        )
        if room:
            return room
        wanted = ", ".join(f"{count:g} {kind}" for kind, count in need.items() if count)
        found = "; ".join(f"{n.get('CPU', 0):g} CPU, {n.get('GPU', 0):g} GPU" for n in nodes)
        raise MachineError(
            f"no node of the Ray cluster can hold a job of {wanted} (nodes: {found or 'none'})",
            fix="lower --cpus-per-job or --gpus-per-job, or give --jobs to wait for more nodes",
        )

    def name(self, slot: int) -> str:
        """Return `actor 1` and so on."""
        return f"actor {slot + 1}"

    def submit(self, slot: int, job: Job) -> None:
        """Call the actor of a free slot."""
        self._jobs[self._actors[slot].run.remote(job)] = (slot, job)

    def wait(self, seconds: float) -> list[Ended]:
        """Return the calls that came back."""
        if not self._jobs:
            return []
        # `ray.wait` returns after the first one; the second call takes those that came with it.
        self._ray.wait(list(self._jobs), num_returns=1, timeout=seconds)
        ready, _ = self._ray.wait(list(self._jobs), num_returns=len(self._jobs), timeout=0)
        return [self._end(call) for call in ready]

    def stop(self, code: int) -> None:
        """Tell every actor; those that are starting are not waited for."""
        for slot, _ in self._jobs.values():
            self._actors[slot].stop.options(concurrency_group=CONTROL).remote(code)

    def close(self) -> None:
        """Kill the actors and leave the cluster; one that was started here ends."""
        for actor in self._actors:
            with suppress(Exception):  # the cluster may be gone already
                self._ray.kill(actor)
        self._ray.shutdown()

    def _end(self, call: Any) -> Ended:
        slot, job = self._jobs.pop(call)
        errors = self._ray.exceptions
        try:
            return Ended(slot, job, self._ray.get(call))
        except errors.RayActorError as e:  # dead, or not to be reached
            return Ended(slot, job, lost_outcome(job, _first_line(e)), lost=True)
        except errors.RayError as e:
            text = f"Ray: {_first_line(e)}"
            outcome = Outcome(
                job.id, job.line, "failed", error_code=70, error=text, error_type=type(e).__name__
            )
            return Ended(slot, job, outcome, lost=True)


def _import_ray() -> Any:
    # No word home: a run touches the network only for what it is asked to.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return import_module("ray")
    except ImportError:
        raise MachineError(
            "--engine ray: Ray is not installed", fix="pip install 'sanawm[ray]'"
        ) from None


def _connect(ray: Any, address: str | None, notes: Notes) -> None:
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is not None:
        options["address"] = address
    elif not os.environ.get("RAY_ADDRESS"):
        # Not one that happens to run here: that may be anybody's.
        options |= {"address": "local", "include_dashboard": False}
        options["object_store_memory"] = STORE_BYTES
    try:
        context = ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as e:
        raise MachineError(
            f"Ray cluster {address or 'on this machine'}: {_first_line(e)}",
            fix="see `ray status`; --ray-address takes auto, HOST:PORT or ray://HOST:PORT; a "
            "cluster with token authentication needs RAY_AUTH_MODE=token and its token here too",
        ) from None
    finally:
        for number, handler in handlers.items():  # Ray takes SIGTERM for itself
            signal.signal(number, handler)
    where = context.address_info.get("address") if hasattr(context, "address_info") else address
    started = address is None and not os.environ.get("RAY_ADDRESS")
    notes.info(f"Ray cluster {'started here' if started else 'joined'}: {where}")


def _actor(ray: Any) -> Any:
    from .worker import Worker

    return ray.remote(concurrency_groups={CONTROL: 1})(Worker)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
