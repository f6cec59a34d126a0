"""Give a job the outputs of another one with the same recipe: hard links, or copies."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from sanawm.io.files import atomic_write
from sanawm.outputs import Outputs, plan_outputs
from sanawm.report import write_report

from .jobs import Job
from .made import pairs, read_report


def share_outputs(made: Job, wanted: Job) -> Outputs:
    """Link the outputs of `made` under the names of `wanted`; return those names.

    The main file comes last, whole at once. Raises `OutputError`.
    """
    source, target = _outputs(made), _outputs(wanted)
    for here, there in pairs(source, target):
        if here.is_dir():
            _link_folder(here, there)
        else:
            _link(here, there)
    if target.report is not None:
        report = read_report(source.report)
        main = {"path": str(target.main), "shared_with": str(source.main)}
        output = report.get("output")
        row = {**output, **main} if isinstance(output, dict) else main
        write_report(target.report, {**report, "output": row})
    return target


def _outputs(job: Job) -> Outputs:
    return plan_outputs(job.asked.resolve(), inputs=())


def _link_folder(here: Path, there: Path) -> None:
    there.mkdir(exist_ok=True)
    for file in here.iterdir():
        _link(file, there / file.name)


def _link(here: Path, there: Path) -> None:
    if there.exists() and there.samefile(here):  # a rename over its own link would do nothing
        return
    with atomic_write(there) as temporary:
        try:
            os.link(here, temporary)
        except OSError:  # another disk, or a file system without links
            shutil.copyfile(here, temporary)
