"""``specbench fetch SETTINGS``: download what a run with these settings reads, model, draft model,
heads and questions.

Into the cache of huggingface_hub, where a run finds it, also offline (HF_HUB_OFFLINE=1) or on a
node without network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from huggingface_hub import HfApi, constants, snapshot_download

from specbench.commands import make_parser
from specbench.input import InputError
from specbench.models.load import locate
from specbench.models.packaged import PACKAGED, fetch_packaged
from specbench.models.weights import TORCH_WEIGHTS, WEIGHTS
from specbench.runs.composition import plain_settings
from specbench.suite.sources import locate as locate_suite

OTHERS = ("*.json", "*.model", "*.txt", "*.jinja")  # configuration, tokenizer, chat template
FAULTS = (OSError, ValueError)  # the hub's own errors are one or both, by their base classes
_GB = 1e9


def main(argv: Sequence[str]) -> int:
    """Download, a line each. Raises InputError."""
    parser = make_parser("fetch", __doc__)
    parser.add_argument(
        "settings", nargs="*", metavar="SETTING", help="of a run: model=vicuna_7b suite=gsm8k ..."
    )
    settings = plain_settings(parser.parse_args(argv).settings)
    model = settings["model"]
    for key in ("path", "draft", "tokenizer"):
        if str(path := model[key]).startswith(PACKAGED):
            print(f"model.{key}", path, fetch_packaged(path, f"model.{key}"))
    for key, repo, revision, patterns in repositories(model):
        _fetch(key, repo, revision, patterns)
    suite = settings["suite"]
    if suite["name"] and suite["format"] != "trace":
        print(
            "suite",
            suite["name"],
            locate_suite(suite["name"], suite["path"], suite["relative"], suite["hub"]),
        )
    return 0


def repositories(model: Mapping[str, Any]) -> Iterator[tuple[str, str, str | None, Sequence[str]]]:
    """(setting, hub id, revision, patterns of files) of what a model's settings name beyond local
    folders.

    Raises InputError for a folder that is missing.
    """
    weights = WEIGHTS if model["safetensors"] else TORCH_WEIGHTS
    heads = model["heads"]
    named = {"path": model["path"], "draft": model["draft"]}
    named |= {f"heads.{name}": heads[name] for name in heads if name != "safetensors"}
    for key, path in named.items():
        if not path or path == "random":
            continue
        if (
            found := locate(path, f"model.{key}", model["gguf"] if key == "path" else None)
        ) != path:
            continue
        files = weights if not key.startswith("heads.") or heads["safetensors"] else TORCH_WEIGHTS
        yield f"model.{key}", found, model["revision"] if key == "path" else None, (*files, *OTHERS)
    tokenizer = model["tokenizer"]
    if (
        tokenizer
        and locate(tokenizer, "model.tokenizer") == tokenizer
        and tokenizer != model["path"]
    ):
        yield "model.tokenizer", tokenizer, None, OTHERS


def _fetch(key: str, repo: str, revision: str | None, patterns: Sequence[str]) -> None:
    if constants.HF_HUB_OFFLINE:
        raise InputError(f"{key}={repo}: HF_HUB_OFFLINE is set, so nothing is downloaded; unset it")
    try:
        files = HfApi().model_info(repo, revision=revision, files_metadata=True).siblings or []
        print(
            f"{key} {repo}: at most {sum(file.size or 0 for file in files) / _GB:.1f} GB",
            flush=True,
        )
        print(snapshot_download(repo, revision=revision, allow_patterns=list(patterns)))
    except FAULTS as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"{key}={repo}: cannot be downloaded ({reason}); expected a hub id"
        ) from error
