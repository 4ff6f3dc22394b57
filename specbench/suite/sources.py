"""Where a suite's file is: the one idea is a fixed order of places, and an error that names every one of them.

The order: the file that the user named; what ships inside the package; the data directory ``$SPECBENCH_DATA``; the
Hugging Face hub, when the suite has an address there. Nothing is fetched unless the suite's configuration says from
where, and nothing is waited for when the hub was switched off.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from specbench.types import InputError

DATA_VARIABLE = "SPECBENCH_DATA"
_ASSETS = Path(__file__).resolve().parents[1] / "assets"
_QUESTIONS = "question.jsonl"


def locate(
    name: str,
    path: str | os.PathLike[str] | None = None,
    relative: str | None = None,
    hub: Mapping[str, str | None] | None = None,
) -> Path:
    """The file of a suite.

    path: a file, taken as it is. relative: below ``$SPECBENCH_DATA/suites``, by default ``<name>/question.jsonl``.
    hub: ``{repo, file}`` of a data set on the Hugging Face hub, optionally ``revision``. Raises InputError, which
    lists every way to give the file, when none of the places has it.
    """
    if path is not None:
        return Path(path).expanduser()
    bundled = _ASSETS / name / _QUESTIONS
    if bundled.is_file():
        return bundled
    relative = relative or f"{name}/{_QUESTIONS}"
    root = os.environ.get(DATA_VARIABLE)
    kept = Path(root).expanduser() / "suites" / relative if root else None
    if kept is not None and kept.is_file():
        return kept
    fetched, refusal = _from_hub(hub)
    if fetched is not None:
        return fetched
    raise InputError(_not_found(name, relative, kept, refusal))


def _from_hub(hub: Mapping[str, str | None] | None) -> tuple[Path | None, str]:
    """The downloaded or cached file, or why there is none."""
    if not hub or not (hub.get("repo") or hub.get("file")):
        return None, "this suite has no address on the hub; set suite.hub.repo and suite.hub.file"
    repo, file = hub.get("repo"), hub.get("file")
    if not repo or not file:
        raise InputError(
            f"suite.hub={dict(hub)}: expected both repo and file, as in {{repo: org/data, file: q.jsonl}}."
        )
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        return None, f"{repo} on the hub needs the package huggingface_hub; pip install huggingface_hub"
    offline = _offline()
    try:
        fetched = hf_hub_download(
            repo, file, repo_type="dataset", revision=hub.get("revision"), local_files_only=offline
        )
    except (OSError, ValueError) as error:  # the hub's own errors are both, by their base classes
        if offline:
            return None, f"HF_HUB_OFFLINE is set and {file} of {repo} is not in the local cache; unset it to download"
        return None, f"{file} of data set {repo} could not be fetched: {str(error).splitlines()[0]}"
    return Path(fetched), ""


def _offline() -> bool:
    """Whether the user switched the hub off, by the words that huggingface_hub itself accepts."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _not_found(name: str, relative: str, kept: Path | None, refusal: str) -> str:
    home = _home(name)
    where = f" (the official file is {home})" if home else ""
    looked = f"looked for {kept}, which does not exist" if kept else f"${DATA_VARIABLE} is not set"
    return (
        f"Suite {name}: its file was not found. Give it in one of these ways:\n"
        f"  1. suite.path=<file>: a .jsonl or .jsonl.gz file of questions{where};\n"
        f"  2. {DATA_VARIABLE}=<directory> in the environment, the file at suites/{relative} below it ({looked});\n"
        f"  3. the Hugging Face hub ({refusal})."
    )


def _home(name: str) -> str:
    """Where the authors of a suite keep its file, for the reader of an error."""
    return {
        "spec_bench": "data/spec_bench/question.jsonl in https://github.com/hemingkx/Spec-Bench",
        "mt_bench": "fastchat/llm_judge/data/mt_bench/question.jsonl in https://github.com/lm-sys/FastChat",
    }.get(name, "")
