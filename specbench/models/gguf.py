"""Models in llama.cpp's files (GGUF): converted once into a folder that every part of a run reads.

Transformers reads a file in half a minute at each start; the folder that is kept loads in a moment.
Weights of 4 or 8 bits become the float32 numbers that they stand for: the model is the quantised
one, computed without further rounding.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Regex, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as library_logging

from specbench.input import InputError
from specbench.kept import find_kept, keep
from specbench.screen import LOADING

SUFFIX, MAGIC = ".gguf", b"GGUF"
NOTE = "gguf.json"  # in the folder: the file, its hash and how it is quantised
_ENDS = ("eos", "eot", "eom")  # of a text, of a turn, of a message
_PART = re.compile(r"-\d{5}-of-\d{5}$")
# Splits of byte-level vocabularies that transformers reads as GPT-2's: each digit is a token's own.
_DIGITS = ("smollm", "starcoder", "refact", "command-r")
_PLAIN = ("gpt-2", "gpt2")
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16}
NORMAL = 1  # the type of a token that is no mark
# what ends a turn in the templates of usual families, as llama.cpp finds it too
ENDS_BY_NAME = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>")

log = logging.getLogger(LOADING)


def is_gguf(path: Path) -> bool:
    """Return true for a file of this form, whatever its name is."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def find_gguf(folder: Path, name: str | None, key: str) -> Path | None:
    """Return the GGUF file of a folder without another model; None for one with a ``config.json``.

    name: of the file, if the folder has several. Raises InputError for a missing file or a choice.
    """
    files = sorted(path for path in folder.glob("*") if path.suffix.lower() == SUFFIX)
    if name is not None:
        if (folder / name).is_file():
            return folder / name
        raise InputError(
            f"model.gguf={name}: no such file in {folder}; expected one of"
            f" {[path.name for path in files]}"
        )
    if (folder / "config.json").exists() or not files:
        return None
    if len(files) > 1:
        raise InputError(
            f"{key}: holds {len(files)} GGUF files; expected model.gguf=FILE, one of"
            f" {[path.name for path in files]}"
        )
    return files[0]


def read_note(folder: str) -> dict[str, str] | None:
    """Return {file, sha256, quantisation} of a converted model; None for any other. ``split``: why
    it has no tokenizer.
    """
    path = Path(folder) / NOTE
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def convert(file: Path, key: str) -> Path:
    """Return the folder of a file's model, converted at the first call.

    key: the setting that names the file. Raises InputError for what cannot be computed rightly.
    """
    if not is_gguf(file):
        raise InputError(f"{key}: does not begin with {MAGIC.decode()}; expected a whole GGUF file")
    if _PART.search(file.stem):
        raise InputError(
            f"{key}: one of several parts; expected one file (llama-gguf-split --merge)"
        )
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()

    name = f"{digest[:16]}-gguf"
    if (kept := find_kept(name)) is None:
        log.info("converting %s, once: about a minute for each 200 M parameters", file.name)
        made = _Conversion(file, digest, key)
        need = 4 * sum(made.tensors.values())
        kept = keep(name, need, lambda folder: made.write(folder / file.stem), key, file)
    [folder] = kept.iterdir()
    return folder


class _Conversion:
    """One file and what it says of itself. Raises InputError as ``convert``."""

    def __init__(self, file: Path, digest: str, key: str) -> None:
        from gguf import GGUFReader  # here: needed once for each file

        self.file, self.digest, self.key = file, digest, key
        try:
            reader = GGUFReader(file)
        except (ValueError, IndexError, KeyError, OSError) as error:
            raise InputError(f"{key}: not a whole GGUF file ({error})") from error
        long = ("tokens", "scores", "token_type", "merges")
        self.entries: dict[str, Any] = {
            name: field.contents()
            for name, field in reader.fields.items()
            if name.rpartition(".")[2] not in long
        }
        words = reader.fields.get("tokenizer.ggml.tokens")
        if words is None or self.entries.get("general.type", "model") != "model":
            kind = self.entries.get("general.type", "model")
            raise InputError(
                f"{key}: is a GGUF file of general.type={kind}, with"
                f" {'no' if words is None else 'a'} vocabulary; expected that of a language model"
            )
        self.tokens = len(words.data)
        types = reader.fields.get("tokenizer.ggml.token_type")
        marked = types.contents() if types else [NORMAL] * self.tokens
        self.named_ends = [
            place
            for place, (token, mark) in enumerate(zip(words.contents(), marked, strict=False))
            if mark != NORMAL and token in ENDS_BY_NAME
        ]
        self.tensors = {tensor.name: int(tensor.n_elements) for tensor in reader.tensors}
        stored = {tensor.tensor_type.name: 0 for tensor in reader.tensors}
        for tensor in reader.tensors:
            stored[tensor.tensor_type.name] += int(tensor.n_elements)
        self.quantisation = max(stored, key=stored.__getitem__)
        self._refuse_rotations()

    def write(self, folder: Path) -> None:
        """Write the model, its tokenizer and a note of its origin into a new folder."""
        options: Any = {"pretrained_model_name_or_path": self.file.parent}
        options |= {"gguf_file": self.file.name, "local_files_only": True}
        bars = library_logging.is_progress_bar_enabled()
        library_logging.disable_progress_bar()
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                **options, dtype=torch.float32, output_loading_info=True
            )
            model, info = loaded
            tokenizer = AutoTokenizer.from_pretrained(**options)
        except (ValueError, KeyError, OSError, ImportError) as error:
            raise InputError(
                f"{self.key}: transformers reads no {self.entries.get('general.architecture')} from"
                f" a GGUF file ({error}); expected the model's own folder with safetensors"
            ) from error
        finally:
            if bars:
                library_logging.enable_progress_bar()
        weights = self._check_weights(model, info["missing_keys"])
        self._check_theta(model.config.get_text_config())
        config, size = model.config, int(model.config.get_text_config().vocab_size)
        found = [self.entries.get(f"tokenizer.ggml.{name}_token_id") for name in _ENDS]
        found += self.named_ends
        ends = sorted({end for end in found if isinstance(end, int) and 0 <= end < size})
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        # on a GPU; of blocks, what their scales are stored in
        config.dtype = _DTYPES.get(self.quantisation, torch.float16)
        model.generation_config.eos_token_id = ends or None
        folder.mkdir()
        config.save_pretrained(folder)
        model.generation_config.save_pretrained(folder)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        note = {"file": self.file.name, "sha256": self.digest, "quantisation": self.quantisation}
        if unknown := self._set_split(tokenizer):
            note["split"] = unknown
        else:
            self._save_tokenizer(tokenizer, folder)
        (folder / NOTE).write_text(json.dumps(note), encoding="utf-8")

    def _save_tokenizer(self, tokenizer: Any, folder: Path) -> None:
        """Save a tokenizer without the tokens that transformers' class has and the file lacks."""
        for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
            if (getattr(tokenizer, f"{name}_id") or 0) >= self.tokens:
                setattr(tokenizer, name, None)
        tokenizer.save_pretrained(folder)
        path = folder / "tokenizer.json"
        stored = json.loads(path.read_text(encoding="utf-8"))
        own = [each for each in stored["added_tokens"] if each["id"] < self.tokens]
        path.write_text(json.dumps(stored | {"added_tokens": own}), encoding="utf-8")

    def _refuse_rotations(self) -> None:
        """Raise InputError for angles that transformers leaves out: it would compute another model
        at long contexts.
        """
        family = self.entries.get("general.architecture")
        kind = self.entries.get(f"{family}.rope.scaling.type", "none")
        scaled = [f"{family}.rope.scaling.type={kind}"] if kind != "none" else []
        for name in ("rope.scaling.factor", "rope.scale_linear"):
            if (factor := self.entries.get(f"{family}.{name}", 1)) not in (0, 1):
                scaled.append(f"{family}.{name}={factor}")
        if found := [name for name in self.tensors if name.startswith("rope_")] + scaled:
            raise InputError(
                f"{self.key}: transformers ignores {found[0]}, which changes the angles of long"
                " contexts; expected the model's own folder with safetensors"
            )

    def _check_theta(self, config: Any) -> None:
        """Raise InputError if the configuration has another base of the rotary angles than the
        file.
        """
        wanted = self.entries.get(f"{self.entries.get('general.architecture')}.rope.freq_base")
        found = (getattr(config, "rope_parameters", None) or {}).get("rope_theta")
        if wanted is not None and found is not None and not math.isclose(wanted, found):
            raise InputError(
                f"{self.key}: rope.freq_base={wanted}, and transformers takes {found} for this"
                " family; expected the model's own folder with safetensors"
            )

    def _check_weights(self, model: Any, missing: Any) -> dict[str, torch.Tensor]:
        """Return the weights by name, tied ones once. Raises InputError if some were left out."""
        tied = model.config.get_text_config().tie_word_embeddings
        weights = {
            name: weight.detach().contiguous()
            for name, weight in model.named_parameters()
            if not (tied and name == "lm_head.weight")
        }
        here, there = sum(map(torch.Tensor.numel, weights.values())), sum(self.tensors.values())
        if missing or here != there:
            raise InputError(
                f"{self.key}: has {there} numbers in its tensors, and the model of transformers"
                f" {here} ({len(missing)} are missing); expected the model's own folder with"
                " safetensors"
            )
        return weights

    def _set_split(self, tokenizer: Any) -> str | None:
        """Split texts as llama.cpp does before byte-level merges; returns the name of a split that
        is not known here.
        """
        if self.entries.get("tokenizer.ggml.model") != "gpt2":
            return None
        kind, inner = self.entries.get("tokenizer.ggml.pre", "none"), tokenizer.backend_tokenizer
        if kind in _DIGITS:
            inner.pre_tokenizer = pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"),
                    pre_tokenizers.ByteLevel(add_prefix_space=False),
                ]
            )
        plain = isinstance(inner.pre_tokenizer, pre_tokenizers.ByteLevel)
        return str(kind) if plain and kind not in _PLAIN else None
