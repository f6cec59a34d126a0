"""Where model files lie: a folder, a file, or `hf://owner/repo[@revision][/sub/path]`.

Only `hf://` locations ever touch the network, and only for files that are not in the local cache.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .errors import MissingFile, UsageError
from .paths import home_expanded

HF = "hf://"
_PATTERN = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w.-]+))?(/(?P<sub>.+))?", re.ASCII
)


@dataclass(frozen=True)
class HubLocation:
    """A folder or file in a repository of the Hugging Face hub."""

    repo: str
    revision: str | None
    sub: str

    @classmethod
    def parse(cls, text: str) -> HubLocation:
        """Read `hf://owner/repo[@revision][/sub/path]`; raise `UsageError` for anything else."""
        match = _PATTERN.fullmatch(text.removeprefix(HF).rstrip("/"))
        parts = (match["sub"] or "").split("/") if match else []
        if match is None or ".." in parts:
            raise UsageError(
                f"location {text!r} is malformed",
                fix="expected hf://owner/repo[@revision][/sub/folder-or-file]",
            )
        return cls(match["repo"], match["revision"], match["sub"] or "")


def local_path(
    location: str, *, what: str, download: bool, key: str = "", set_by: str = ""
) -> Path | None:
    """Return where `location` lies on this disk.

    A path that does not exist raises `MissingFile` naming `what`, the settings key that holds the
    location, and who set it. An `hf://` location returns its cached copy; when there is none it is
    fetched with `download`, else None is returned.
    """
    if not location.startswith(HF):
        path = home_expanded(location, where=what)
        if not path.exists():
            by = f" ({key} of {set_by})" if key and set_by else ""
            raise MissingFile(
                f"{what}: {path}: no such file or folder{by}",
                fix=f"give its folder with --set {key}=FOLDER, or as {key} in a config file"
                if key
                else "correct the path",
            )
        return path
    return _from_hub(HubLocation.parse(location), location, what=what, download=download)


def _from_hub(hub: HubLocation, location: str, *, what: str, download: bool) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    patterns = [f"{hub.sub}/*", hub.sub] if hub.sub else None
    for offline in (True, False) if download else (True,):
        try:
            root = snapshot_download(
                hub.repo,
                revision=hub.revision,
                allow_patterns=patterns,
                local_files_only=offline,
            )
        except LocalEntryNotFoundError:
            continue
        except (HfHubHTTPError, OSError) as e:
            raise MissingFile(
                f"{what}: {location} could not be fetched ({str(e).splitlines()[0][:200]})",
                fix="check the network and access to the repository, or give a local folder",
            ) from None
        found = Path(root) / hub.sub
        if found.exists():
            return found
    if download:
        raise MissingFile(
            f"{what}: {location} is not in the local cache and could not be fetched",
            fix="check the network, or give a local folder",
        )
    return None
