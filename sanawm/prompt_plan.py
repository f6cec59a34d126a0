"""The prompt of a planned run: its text, or a file of its embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .config import Resolved
from .errors import InputError, MissingFile, UsageError
from .notes import Notes


@dataclass(frozen=True)
class PromptPlan:
    """Where the prompt's embeddings come from: `text`, or a file of embeddings `width` wide."""

    text: str | None
    embeds: Path | None
    sha256: str
    width: int | None = None

    def check_width(self, expected: int) -> None:
        """Raise `InputError` when embeddings from a file are not as wide as the refiner expects."""
        if self.width not in (None, expected):
            raise InputError(
                f"--prompt-embeds {self.embeds}: the embeddings are {self.width} wide, this "
                f"refiner expects {expected}",
                fix="save them in a run with this refiner, or give the prompt itself",
            )


def plan_prompt(settings: Resolved, *, notes: Notes) -> PromptPlan:
    """Return the prompt, read and checked; note when its text is the name of a file."""
    from .text.embeddings import load_prompt_embeds
    from .text.prompt import check_prompt, clean_prompt, prompt_sha256, read_prompt_file

    given = settings.settings.input
    if given.prompt_embeds:
        path = Path(given.prompt_embeds)
        if not path.is_file():
            raise MissingFile(
                f"{settings.named('input.prompt_embeds')}: no such file",
                fix="correct the path, or make it with --save-prompt-embeds",
            )
        width = load_prompt_embeds(path).prompt.embeds.shape[-1]
        return PromptPlan(None, path, _file_sha256(path), width)
    if given.prompt_file:
        text = read_prompt_file(Path(given.prompt_file))
    elif given.prompt is not None:
        text = clean_prompt(given.prompt, where=str(settings.origin("input.prompt")))
        check_prompt(text, where=str(settings.origin("input.prompt")))
        if _is_file(text):
            notes.info(
                f"{settings.named('input.prompt')}: taken as the text itself, though there is a "
                f"file of that name; --prompt-file {text} reads it"
            )
    else:
        raise UsageError(
            "no prompt", fix="add --prompt TEXT, --prompt-file FILE or --prompt-embeds FILE"
        )
    return PromptPlan(text, None, prompt_sha256(text))


def _is_file(text: str) -> bool:
    """Tell whether a prompt is the name of a file; most are too long for one."""
    try:
        return Path(text).is_file()
    except OSError:
        return False


def _file_sha256(path: Path) -> str:
    import hashlib

    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
