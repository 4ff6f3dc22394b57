"""``specbench completion SHELL``: what makes bash or zsh complete commands, settings and options by
the tab key.

Also inside a list and inside quotes: ``'method=[pld,sa`` becomes ``'method=[pld,sam``. What can
stand in a place comes from the schema and the files of ``conf/``; no configuration is composed, and
neither Hydra nor torch is imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, get_type_hints

import yaml

from specbench.commands import COMMANDS, DEFAULT, make_parser
from specbench.runs.config import Config, conf_dir, list_options

BASH = """\
_specbench() {
  local IFS=$'\\n'
  COMPREPLY=($(specbench completion bash --line "${COMP_LINE:0:$COMP_POINT}" 2>/dev/null))
}
complete -o nospace -o default -F _specbench specbench
"""
ZSH = """\
_specbench() {
  local -a found
  found=("${(@f)$(specbench completion zsh --line "$LBUFFER" 2>/dev/null)}")
  [[ -n "$found" ]] && compadd -U -S '' -- $found || _default
}
compdef _specbench specbench
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH}
FLAGS = ("--multirun", "--config-name", "--config-dir", "--cfg", "--help")
_RESERVED = ("_target_", "defaults")


def main(argv: Sequence[str]) -> int:
    """Print the lines for a shell, or, with --line, what may complete a line."""
    parser = make_parser(
        "completion",
        __doc__,
        epilog=(
            'In ~/.bashrc or ~/.zshrc (there after compinit): eval "$(specbench completion bash)"'
        ),
    )
    parser.add_argument("shell", choices=SCRIPTS)
    parser.add_argument(
        "--line", help="of the shell, up to the cursor: print the words that complete it"
    )
    given = parser.parse_args(argv)
    print(
        (
            SCRIPTS[given.shell]
            if given.line is None
            else "\n".join(complete_line(given.line, given.shell))
        ),
        end="",
    )
    return 0


def complete_line(line: str, shell: str = "zsh") -> list[str]:
    """Returns the completions of the line's last word. In bash, unquoted, it begins after its last
    ``=``.
    """
    words, quoted = _split(line)
    found = sorted(set(complete_word(words[-1], words[1:-1])))
    cut = 0 if quoted or shell != "bash" else words[-1].rfind("=") + 1
    return [word[cut:] for word in found]


def _split(line: str) -> tuple[list[str], bool]:
    """The words of a line whose last quote may be open, and whether it is."""
    words, quote = [""], ""
    for letter in line:
        if quote:
            quote = "" if letter == quote else quote
            words[-1] += letter if quote else ""
        elif letter in "'\"":
            quote = letter
        elif letter.isspace():
            words.append("")
        elif letter != "\\":
            words[-1] += letter
    return words, bool(quote)


def complete_word(word: str, before: Sequence[str]) -> Iterator[str]:
    """Yields the words that begin with ``word``. before: the words of the command line before
    it.
    """
    if before and before[0] in COMMANDS and before[0] not in (DEFAULT, "fetch", "profile", "tune"):
        return
    key, equals, value = word.partition("=")
    if equals:
        yield from (f"{key}={each}" for each in _values(key, value))
        return
    known = list(_keys(word))
    if not before:
        known += COMMANDS
    yield from (
        each
        for each in [*known, *FLAGS]
        if each.startswith(word) and (word or not each.startswith("-"))
    )


def _values(key: str, value: str) -> Iterator[str]:
    """The options of a group, after the comma or the bracket of a list; both values of a switch."""
    start = max(value.rfind(","), value.rfind("[")) + 1
    last, chosen = value[start:], re.split(r"[,\[]", value[:start])
    options = list_options(key.removeprefix("+")) or (["true", "false"] if _is_switch(key) else [])
    yield from (
        value[:start] + each for each in options if each.startswith(last) and each not in chosen
    )


def _is_switch(key: str) -> bool:
    node: Any = Config()
    for part in key.split("."):
        node = getattr(node, part, None)
    return isinstance(node, bool)


def _kind(key: str) -> Any:
    """The type of a setting of the schema; None for another."""
    kind: Any = Config
    for part in key.split("."):
        kind = get_type_hints(kind).get(part) if hasattr(kind, "__dataclass_fields__") else None
    return kind


def _keys(word: str) -> Iterator[str]:
    """Groups with ``=``, and what is below the last dot of a word: settings with ``=``, nodes with
    a dot.
    """
    parent, dot, _ = word.rpartition(".")
    if not dot:
        yield from (f"{name}=" for name in list_options(""))
        yield from (f"{name}." for name in get_type_hints(Config))
    elif parent == "method":
        yield from (f"{word.rpartition('.')[0]}.{name}." for name in list_options("method"))
    elif parent.startswith("method."):
        path = conf_dir() / "method" / f"{parent.removeprefix('method.')}.yaml"
        settings = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
        yield from (f"{parent}.{name}=" for name in settings if name not in _RESERVED)
    elif hasattr(kind := _kind(parent), "__dataclass_fields__"):
        for name, inner in get_type_hints(kind).items():
            yield f"{parent}.{name}" + ("." if hasattr(inner, "__dataclass_fields__") else "=")
