"""The program that writes conversations by a chat template within limits of time and memory: it may
be endless.

It imports Jinja and nothing that is slow. Its environment is that of transformers: a template must
do here what it does there. Its input is JSON: the template, conversations, and the names that the
template sees.
"""

from __future__ import annotations

import json
import resource
import sys
from datetime import datetime
from typing import Any, NoReturn

LONGEST_CPU_S, MOST_BYTES, MOST_TEXT = 3, 1 << 30, 1 << 24
TOO_MUCH = 3  # the exit code of a template that fills the memory


def write(template: Any, chats: list[Any], names: dict[str, Any]) -> list[str]:
    """Returns the text of each conversation."""
    from jinja2 import nodes, runtime
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The marks around answers, between which is plain text."""

        tags = {"generation"}  # noqa: RUF012 (the base class has it so)

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_write"), [], [], body).set_lineno(line)

        def _write(self, caller: runtime.Macro) -> Any:
            return caller()

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(
        value, **{"ensure_ascii": False, **options}
    )
    environment.globals |= {
        "raise_exception": refuse,
        "strftime_now": lambda form: datetime.now().strftime(form),
    }
    compiled = environment.from_string(template)
    given = {"tools": None, "documents": None, "add_generation_prompt": True, **names}
    return [compiled.render(messages=chat, **given) for chat in chats]


def main() -> None:
    """Try the template of the standard input. An error of its own is no fault here."""
    given = json.load(sys.stdin)
    import jinja2.ext
    import jinja2.sandbox  # noqa: F401 (before the limits)

    limits = (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, LONGEST_CPU_S),
        (resource.RLIMIT_AS, MOST_BYTES),
    )
    for kind, most in limits:
        hard = resource.getrlimit(kind)[1]  # the user's own, which may be lower
        resource.setrlimit(
            kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard)
        )
    try:
        sys.exit(TOO_MUCH if any(len(text) > MOST_TEXT for text in write(**given)) else 0)
    except MemoryError:
        sys.exit(TOO_MUCH)
    except Exception:
        sys.exit(0)


if __name__ == "__main__":
    main()
