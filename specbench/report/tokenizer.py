"""The tokenizer of a run, for reports: counts a text's tokens and spells token ids, without model
or network.

The text of shown ids is kept next to a run's records, so that its report can be made on any
machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from specbench.input import parse_json, read_file
from specbench.names import ASSETS, BUNDLED
from specbench.records.store import PIECES, Run, RunError, write_atomically

FILE = "tokenizer.json"
_FIX = f"give the folder that contains the model's {FILE}: --tokenizer DIR"


def read_counter(path: Path) -> Callable[[str], int]:
    """Text -> its tokens, without the specials (BOS) that the tokenizer would add. path: folder or
    file.

    Raises RunError if there is no tokenizer, or it cannot be read.
    """
    tokenizer = read_tokenizer(path)
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def read_tokenizer(path: Path) -> Any:
    """The ``tokenizers.Tokenizer`` of a folder or file. Raises RunError."""
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise RunError(f"tokenizer {path}: contains no {FILE}; {_FIX}")
    from tokenizers import Tokenizer  # only what tokenises text needs it

    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise RunError(f"{file}: not a tokenizer ({error}); {_FIX}") from error


def find_tokenizer(run: Run) -> Path:
    """Finds the run's tokenizer on this machine: its own folder, the bundled one, or the hub's
    cache.

    Raises RunError saying how to name it.
    """
    model, configured = run.section("model"), run.section("config", "model")
    recorded = [configured.get("tokenizer"), model.get("path"), configured.get("path")]
    named = [str(name) for name in recorded if name]
    for name in named:
        here = os.path.expanduser(os.path.expandvars(name))  # noqa: PTH111 (a Path raises)
        path = ASSETS / name.removeprefix(BUNDLED) if name.startswith(BUNDLED) else Path(here)
        if (path / FILE).is_file():
            return path
        cached = _cached(name, configured.get("revision"))
        if cached is not None:
            return cached
    where = " nor ".join(named[:2]) if named else "the manifest's model, which has no path,"
    raise RunError(f"run {run.directory}: no {FILE} found at {where}; {_FIX}")


def _cached(name: str, revision: object) -> Path | None:
    """The file of a hub id that was downloaded before; None if it was not."""
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(name, FILE, revision=str(revision) if revision else None)
    except ValueError:  # not a hub id
        return None
    return Path(found) if isinstance(found, str) else None


UNKNOWN = "<{}>"  # of an id without a known text
_BROKEN = "\N{REPLACEMENT CHARACTER}"  # part of a character that several tokens make up
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


def spell_ids(run: Run, ids: Iterable[int]) -> dict[int, str]:
    """Id -> its piece of text: as kept next to the records, else by the run's tokenizer, else
    '<id>'.
    """
    wanted = set(ids)
    found = {token: piece for token, piece in read_pieces(run).items() if token in wanted}
    unknown = wanted - found.keys()
    if unknown:
        spell = _make_speller(run) or UNKNOWN.format
        found |= {token: spell(token) for token in unknown}
    return found


def read_pieces(run: Run) -> dict[int, str]:
    """What is kept next to the records; nothing if the file is missing, damaged, or of another
    configuration.
    """
    try:
        kept = parse_json(read_file(run.directory / PIECES, "", ""), "", "")
        if kept["config_hash"] != run.manifest.get("config_hash"):
            return {}
        return {int(token): str(piece) for token, piece in kept["pieces"].items()}
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}


def write_pieces(run: Run, ids: Iterable[int]) -> Path | None:
    """Keep the pieces of these ids next to the records; None if the run's tokenizer is not on this
    machine.
    """
    kept = read_pieces(run)
    missing = set(ids) - kept.keys()
    path = run.directory / PIECES
    if not missing:
        return path if kept else None
    spell = _make_speller(run)
    if spell is None:
        return None
    kept |= {token: spell(token) for token in missing}
    pieces = {str(token): kept[token] for token in sorted(kept)}
    text = json.dumps({"config_hash": run.manifest.get("config_hash"), "pieces": pieces})
    write_atomically(path, text + "\n")
    return path


def _make_speller(run: Run) -> Callable[[int], str] | None:
    try:
        tokenizer = read_tokenizer(find_tokenizer(run))
    except RunError:
        return None
    # decoders drop the first piece's space
    anchor = tokenizer.encode("a", add_special_tokens=False).ids[-1:]
    before = tokenizer.decode(anchor, skip_special_tokens=False)

    def spell(token: int) -> str:
        name = tokenizer.id_to_token(token) if 0 <= token < 1 << 32 else None
        if name is None:
            return UNKNOWN.format(token)
        text = tokenizer.decode([*anchor, token], skip_special_tokens=False)
        whole = text.startswith(before) and text != before and _BROKEN not in text
        return text[len(before) :] if whole else _hexadecimal(name)

    return spell


def _hexadecimal(name: str) -> str:
    """A byte-level piece that is not a complete character as its bytes, '<E2 80>'; any other name
    unchanged.
    """
    printed = {chr(byte): byte for byte in _PRINTABLE}
    rest = (byte for byte in range(256) if byte not in _PRINTABLE)
    # how byte-level vocabularies write bytes
    printed |= {chr(256 + place): byte for place, byte in enumerate(rest)}
    if all(char in printed for char in name) and not name.isascii():
        return f"<{' '.join(f'{printed[char]:02X}' for char in name)}>"
    return name
