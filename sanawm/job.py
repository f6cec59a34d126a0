"""One refine run from a plan to files: the command's work, without the command line.

Order: outputs are claimed, the prompt is encoded and its encoder freed, the models are loaded,
then every block goes clean -> refined -> frames -> file before the next one but one is computed.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .chunks import FrameChunk, RefinedChunk
from .components import use_threads
from .errors import SanawmError
from .estimate import MemoryEstimate, estimate_memory
from .events import Event, Listener, ignore
from .measure import device_bytes, luma_statistics, peak_device_bytes
from .noise_file import run_noise
from .notes import Notes
from .pipeline import Pipeline
from .plan import Plan
from .prompting import Texts, prompt_texts
from .report import (
    Record,
    build_report,
    describe_inputs,
    describe_weights,
    latents_metadata,
    video_metadata,
    write_report,
)
from .resume import open_states, recipe_of, recipe_sha256
from .schedule import Offloaded, Residency, Stage, join_stages
from .space import check_space
from .states import NO_STATES, RunStates, StageStates
from .stopping import how_to_go_on, interrupted, was_stopped
from .takeover import Kept
from .writers import OutputWriters


@dataclass(frozen=True)
class JobResult:
    """What a finished run made."""

    output: Path
    report: Path | None
    frames_written: int
    seconds: float
    data: dict[str, Any]


class RefineJob:
    """Run one plan. `stop` returns an exit code once the run should end after the block in hand.

    A run in a row of several brings `pipeline`, made for its plan and with models loaded already,
    and the `texts` of its prompt if they are known.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        notes: Notes,
        listener: Listener = ignore,
        cache: Path | None = None,
        stop: Callable[[], int | None] = lambda: None,
        command: list[str] | None = None,
        pipeline: Pipeline | None = None,
        texts: Texts | None = None,
    ) -> None:
        self.plan = plan
        self.notes = notes
        self.listener = listener
        self.cache = cache if plan.settings.settings.text.store else None
        self.stop = stop
        self.command = command if command is not None else list(sys.argv)
        self.pipeline = pipeline or Pipeline(plan.settings, notes=notes, components=plan.components)
        self.known_texts = texts
        self.record = Record()
        self.states: StageStates = NO_STATES
        self._stages: list[Stage] = []
        self._pixels: dict[int, FrameChunk] = {}

    def run(self) -> JobResult:
        """Do the work; on failure what was finished is kept and the report says what happened."""
        use_threads(self.plan.settings.settings.runtime.threads)
        try:
            with ExitStack() as stack:
                self._run(stack)
        except BaseException as e:
            self._report_failure(e)
            raise
        return self._finish()

    def _run(self, stack: ExitStack) -> None:
        plan, record = self.plan, self.record
        record.inputs = describe_inputs(plan)
        record.weights = describe_weights(plan.components)
        record.recipe_sha256 = recipe_sha256(plan, record)
        recipe = recipe_of(plan, record, device=self.pipeline.device, dtype=self.pipeline.dtype)
        self.states, kept = open_states(plan, recipe, notes=self.notes, on_saved=self._state_saved)
        if isinstance(self.states, RunStates):
            # Leaves last: chunks that the writers finish may still complete a state.
            stack.push(self._close_states)
        estimate = estimate_memory(plan, device=self.pipeline.device, dtype=self.pipeline.dtype)
        check_space(plan, estimate, self.pipeline.dtype, notes=self.notes)
        writers = OutputWriters(
            plan,
            metadata=video_metadata(plan, record),
            latents_metadata=latents_metadata(plan, record),
            notes=self.notes,
            on_chunk=self._chunk_written,
            kept=kept,
        )
        stack.enter_context(writers)
        self._writers = writers
        self._say_start(estimate, writers)
        texts = self._texts()
        self._check_stop(kept.blocks)
        self._load()
        self._check_stop(kept.blocks)
        self._take_over(kept, writers)
        self._blocks(texts, writers, stack)
        with self.record.timeline.measure("close", len(plan.blocks)):
            video = writers.close()
        if video is not None:
            record.output = {
                "path": str(video.path),
                "frames": video.frames,
                "fps": str(video.fps),
                "bytes": video.bytes,
            }
            record.frames_written = video.frames
        else:
            record.output = {"path": str(plan.outputs.main), "frames": 0}
        self._memory(estimate)

    def _texts(self) -> Texts:
        """Return the embeddings of the prompt; each encoder is freed before the next loads."""
        with self.record.timeline.measure("text", -1):
            texts = prompt_texts(
                self.plan,
                self.pipeline,
                known=self.known_texts,
                cache=self.cache,
                loading=lambda name: self._emit("load_start", {"component": name}),
            )
        self.known_texts = texts
        self.record.memory["text_peak"] = peak_device_bytes(self.pipeline.device)
        self._emit("encode_done", {"what": "prompt", "tokens": texts.prompt.embeds.shape[1]})
        return texts

    def _load(self) -> None:
        """Load what the blocks need, one component after the other."""
        needed = [*self.plan.source.needs, "refiner"]
        if self.plan.outputs.video is not None:
            needed.append("decoder")
        for name in needed:
            self._emit("load_start", {"component": name})
            start = time.monotonic()
            with self.record.timeline.measure(f"load {name}", -1):
                getattr(self.pipeline, name)
            seconds = round(time.monotonic() - start, 3)
            self._emit("load_done", {"component": name, "seconds": seconds})

    def _blocks(self, texts: Texts, writers: OutputWriters, stack: ExitStack) -> None:
        """Take every block through the stages, in a row or overlapped."""
        plan, pipe = self.plan, self.pipeline
        runtime = plan.settings.settings.runtime
        join, self.record.schedule = join_stages(
            runtime.schedule, runtime.offload, pipe.device, stack=stack, notes=self.notes
        )
        source = self._stage(plan.source.stage, plan.source.needs)
        states, done = self.states, self.states.done
        chunks = plan.source.chunks(pipe, texts.caption, states)
        first = done if done or not plan.window.sink else -1
        clean = join(self._clean(source.work(chunks, first=first), writers), source.name)

        refine = self._stage("refine", ("refiner",))
        refined = pipe.refine(
            refine.feed(clean),
            texts.prompt,
            shape=plan.shape,
            noise=run_noise(plan, pipe, write=writers.noise),
            states=states,
        )
        refined = join(self._refined(refine.work(refined, first=done), writers), refine.name)

        mark = time.monotonic()
        if plan.outputs.video is None:
            for chunk in refined:
                mark = self._note_block(chunk, None, mark)
                self._block_on_disk(chunk.span.number)
                self._say_block(chunk)
                self._check_stop(chunk.span.number + 1)
            return
        decode = self._stage("decode", ("decoder",))
        kept: deque[RefinedChunk] = deque()
        frames = pipe.decode(
            _keep(decode.feed(refined), kept),
            drop_first=plan.frames.dropped == 1,
            states=states,
        )
        for pixels in join(decode.work(frames, first=done), decode.name):
            chunk = kept.popleft()
            mark = self._note_block(chunk, pixels, mark)
            self._pixels[pixels.span.number] = pixels
            writers.frames(pixels)
            self._say_block(chunk)  # by now the block before it is in the file
            self._check_stop(pixels.span.number + 1)

    def _stage(self, name: str, models: tuple[str, ...]) -> Stage:
        pipe = self.pipeline
        device = pipe.places[models[0]] if models else pipe.device
        residency: Residency | None = None
        if models and self.plan.settings.settings.runtime.offload == "all":
            residency = Offloaded(lambda: getattr(pipe, models[0]), device)
        stage = Stage(
            name, self.record.timeline, residency=residency, memory=lambda: device_bytes(device)
        )
        self._stages.append(stage)
        return stage

    def _clean(self, chunks: Iterator[Tensor], writers: OutputWriters) -> Iterator[Tensor]:
        """Hand clean chunks on, keeping stage 1's on disk if asked."""
        start = self.plan.blocks[self.states.done - 1].stop if self.states.done else 0
        for chunk in chunks:
            writers.clean(start, chunk)
            start += chunk.shape[2]
            self._emit("chunk_done", {"latent_frames": start})
            yield chunk

    def _refined(
        self, chunks: Iterator[RefinedChunk], writers: OutputWriters
    ) -> Iterator[RefinedChunk]:
        for chunk in chunks:
            writers.latents(chunk)
            yield chunk

    def _note_block(self, chunk: RefinedChunk, pixels: FrameChunk | None, since: float) -> float:
        """Record a finished block that was begun at `since`; return the time."""
        now = time.monotonic()
        row: dict[str, Any] = {
            "index": chunk.span.number,
            "start": chunk.span.start,
            "stop": chunk.span.stop,
            "history": chunk.history_frames,
            "sink_position": chunk.sink_position,
            "seconds": round(now - since, 4),
            "memory_bytes": device_bytes(self.pipeline.device),
        }
        if pixels is not None and len(pixels.frames):
            row["luma_mean"], row["luma_std"] = luma_statistics(pixels.frames)
        self.record.blocks.append(row)
        return now

    def _say_block(self, chunk: RefinedChunk) -> None:
        """Tell the listener of a finished block."""
        row = self.record.blocks[chunk.span.number]
        video_seconds = self.plan.chunk_frames(chunk.span) / float(self.plan.output_fps)
        rate = video_seconds / row["seconds"] if row["seconds"] > 0 else None
        total = {"blocks": len(self.plan.blocks), "realtime_factor": rate}
        self._emit("block_done", row | total)

    def _chunk_written(self, index: int, first: int, frames: int, seconds: float) -> None:
        """Note, in the writer's thread, that a chunk is in the file."""
        timeline = self.record.timeline
        now = timeline.now()
        timeline.add("write", index, now - seconds, now)
        if self.record.first_chunk_seconds is None:
            self.record.first_chunk_seconds = round(now, 4)
        self.record.frames_written = first + frames
        self._emit("chunk_written", {"index": index, "frames": first + frames})
        self._block_on_disk(index)

    def _block_on_disk(self, number: int) -> None:
        """Let the run state follow: the block's frames are in the file (or its latents are)."""
        pixels = self._pixels.pop(number, None)
        if not isinstance(self.states, RunStates):
            return

        def extra() -> dict[str, Any]:
            kept: dict[str, Any] = {
                "rows": self.record.blocks[: number + 1],
                "output": str(self.plan.outputs.main.absolute()),
                "prompt": self.plan.prompt.text,
            }
            if pixels is not None:
                kept |= {"frames": torch.from_numpy(pixels.frames), "first": pixels.first}
            return kept

        self.states.written(number, extra, sync=self._writers.sync)

    def _state_saved(self, block: int, size: int) -> None:
        self._emit("state_saved", {"block": block, "bytes": size})

    def _close_states(self, kind: Any, error: Any, trace: Any) -> None:
        assert isinstance(self.states, RunStates)
        self.states.close(seconds=1.0 if kind is KeyboardInterrupt else None)
        self.record.state_seconds = round(self.states.seconds, 4)
        self.record.state_cost_seconds = round(self.states.cost_seconds, 4)

    def _take_over(self, kept: Kept, writers: OutputWriters) -> None:
        """Give a continued run its earlier rows, and its last saved block's frames once more."""
        self.record.blocks = [dict(row) for row in kept.rows]
        self.record.resumed_after = kept.blocks
        if kept.frames is not None:
            span = self.plan.blocks[kept.blocks - 1]
            writers.frames(FrameChunk(span, kept.first, kept.frames.numpy()))

    def _check_stop(self, done: int) -> None:
        """Raise `Interrupted` when the run was asked to stop and blocks are left."""
        code, blocks = self.stop(), len(self.plan.blocks)
        if code is None or done == blocks:
            return
        resumable = isinstance(self.states, RunStates)
        fix = how_to_go_on(self.command, resumable=resumable)
        raise interrupted(done, blocks, code=code, fix=fix)

    def _memory(self, estimate: MemoryEstimate) -> None:
        devices = {self.pipeline.device, *self.pipeline.places.values()}
        measured = sum(peak_device_bytes(device) for device in devices)
        stages = {stage.name: stage.peak_bytes for stage in self._stages}
        self.record.memory |= {
            "predicted": estimate.rows(),
            "peak": measured,
            "per_stage": {"text": self.record.memory.get("text_peak", 0), **stages},
        }
        estimate.compare(measured, notes=self.notes)

    def _say_start(self, estimate: MemoryEstimate, writers: OutputWriters) -> None:
        from .describe import plan_lines

        lines = plan_lines(
            self.plan,
            device=self.pipeline.device,
            dtype=self.pipeline.dtype,
            estimate=estimate,
            part=writers.part,
        )
        self._emit("run_start", {"lines": lines, "blocks": len(self.plan.blocks)})

    def _finish(self) -> JobResult:
        report = self._report("done")
        plan, record = self.plan, self.record
        seconds = record.timeline.now()
        path = plan.outputs.report
        if path is not None:
            write_report(path, report)
        if isinstance(self.states, RunStates):
            self.states.remove()  # last of all: until here a killed run can be continued
        made = f"{record.frames_written} frames" if plan.outputs.video else "latents"
        summary = f"done: {made} in {seconds:.1f} s -> {plan.outputs.main}"
        done = {"summary": summary, "frames": record.frames_written, "seconds": round(seconds, 3)}
        self._emit("run_done", done)
        return JobResult(plan.outputs.main, path, record.frames_written, seconds, report)

    def _report(self, status: str) -> dict[str, Any]:
        return build_report(
            self.plan,
            self.record,
            self.notes,
            status=status,
            device=str(self.pipeline.device),
            dtype=str(self.pipeline.dtype).removeprefix("torch."),
            command=self.command,
        )

    def _report_failure(self, error: BaseException) -> None:
        """Write a report of a run that did not finish; never hide the error itself."""
        path = self.plan.outputs.report
        self.record.error = {"type": type(error).__name__, "message": str(error)}
        blocks, state = (len(self.record.blocks), len(self.plan.blocks)), self.states.path
        stopped = was_stopped(error, *blocks, command=self.command, state=state)
        if path is None or not self.record.blocks:
            return
        try:
            write_report(path, self._report("interrupted" if stopped else "failed"))
        except (SanawmError, OSError):
            return

    def _emit(self, name: str, data: dict[str, Any]) -> None:
        self.listener(Event(name, data=data))


def _keep(chunks: Iterator[RefinedChunk], kept: deque[RefinedChunk]) -> Iterator[RefinedChunk]:
    """Pass chunks on, remembering each (without its latents) for the line about its block."""
    for chunk in chunks:
        kept.append(replace(chunk, latents=chunk.latents[:, :, :0]))
        yield chunk
