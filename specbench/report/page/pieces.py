"""The text of token ids, stored next to a run's records so that its report can be made on any machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from specbench.input import parse_json, read_file
from specbench.records.store import PIECES, Run, RunError, write_atomically
from specbench.report.tokenizer import find_tokenizer, read_tokenizer

UNKNOWN = "<{}>"  # of an id without a known text
_BROKEN = "\N{REPLACEMENT CHARACTER}"  # part of a character that several tokens make up
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


def spell_ids(run: Run, ids: Iterable[int]) -> dict[int, str]:
    """Id -> its piece of text: as stored next to the records, else by the run's tokenizer, else '<id>'."""
    wanted = set(ids)
    found = {token: piece for token, piece in read_pieces(run).items() if token in wanted}
    unknown = wanted - found.keys()
    if unknown:
        spell = _make_speller(run) or UNKNOWN.format
        found |= {token: spell(token) for token in unknown}
    return found


def read_pieces(run: Run) -> dict[int, str]:
    """The pieces stored next to the records; empty if the file is missing, damaged, or of another configuration."""
    try:
        kept = parse_json(read_file(run.directory / PIECES, "", ""), "", "")
        if kept["config_hash"] != run.manifest.get("config_hash"):
            return {}
        return {int(token): str(piece) for token, piece in kept["pieces"].items()}
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}


def write_pieces(run: Run, ids: Iterable[int]) -> Path | None:
    """Store the pieces of these ids next to the records; None if the run's tokenizer is not on this machine."""
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
    anchor = tokenizer.encode("a", add_special_tokens=False).ids[-1:]  # decoders drop the first piece's space
    before = tokenizer.decode(anchor, skip_special_tokens=False)
    return lambda token: _spell(tokenizer, anchor, before, token)


def _spell(tokenizer: Any, anchor: list[int], before: str, token: int) -> str:
    name = tokenizer.id_to_token(token) if 0 <= token < 1 << 32 else None
    if name is None:
        return UNKNOWN.format(token)
    text = tokenizer.decode([*anchor, token], skip_special_tokens=False)
    if text.startswith(before) and text != before and _BROKEN not in text:
        return text[len(before) :]
    return _hexadecimal(name)


def _hexadecimal(name: str) -> str:
    """A byte-level piece that is no whole character as its bytes, '<E2 80>'; any other name unchanged."""
    printed = {chr(byte): byte for byte in _PRINTABLE}
    rest = (byte for byte in range(256) if byte not in _PRINTABLE)
    printed |= {chr(256 + place): byte for place, byte in enumerate(rest)}  # how byte-level vocabularies write bytes
    if all(char in printed for char in name) and not name.isascii():
        return f"<{' '.join(f'{printed[char]:02X}' for char in name)}>"
    return name
