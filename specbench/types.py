"""The data types that the packages exchange, such as ``Draft``, ``Step`` and ``Case``, and the
errors.

Shape letters, used everywhere: ``N`` draft nodes, ``A`` accepted nodes, ``T`` context tokens, ``V``
vocabulary, ``D`` hidden size, ``L`` layers, ``H`` heads, ``K`` key-value heads. Units are in names:
``_s``, ``_ms``, ``_bytes``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import dataclass_transform

from specbench.input import InputError

# for the types alone: what reads settings, suites and traces starts without torch
if TYPE_CHECKING:
    from torch import Tensor

Made = TypeVar("Made", bound=type)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def step_value(kind: Made) -> Made:
    """Make a class a slotted dataclass that is frozen for the type checker alone.

    It is for values of which every request makes one or two per step: a frozen one takes six times
    as long to make.
    """
    made: Any = dataclass(slots=True, unsafe_hash=True)(kind)
    return made


# the parent of a draft's first level: the last emitted token, which the draft never contains
ROOT = -1


@contextlib.contextmanager
def named(prefix: str) -> Iterator[None]:
    """Put ``prefix`` in front of an InputError raised inside."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{prefix}{error}") from error


MOST = 4096  # the largest size that a draft, or a part of one, may be set to


def require_count(name: str, value: int | None, low: int = 1, high: int = MOST) -> None:
    """Raise InputError if an integer is out of bounds, before memory of that size is allocated."""
    if value is None or not low <= value <= high:
        given = "null" if value is None else value
        raise InputError(f"{name}={given}: expected a whole number from {low} to {high}")


def require_nodes(setting: str, nodes: int, most: int) -> None:
    """Raise InputError where a draft has more nodes than the engine takes. setting: as given, e.g.
    ``nodes=300``.
    """
    if nodes > most:
        raise InputError(
            f"{setting}: a draft has up to {nodes} nodes; expected at most engine.max_nodes={most}:"
            f" lower it, or set engine.max_nodes={nodes}"
        )


class CaseError(RuntimeError):
    """One case cannot be decoded (prompt too long, NaN logits ...): it becomes an error row and the
    run continues.
    """


@dataclass(frozen=True, slots=True)
class Case:
    """One question of a suite: the user's turns in order, and the reference answers if any.

    system: the question's own system message; None leaves that of the run. messages: of a recorded
    conversation, without the system message, as chat templates read them: each turn is then what a
    message of the assistant answers, and its prompt the recorded messages before that one. tools:
    function schemas, OpenAI's form.
    """

    id: str
    category: str
    turns: tuple[str, ...]
    subcategory: str = ""
    references: tuple[object, ...] = ()
    system: str | None = None
    messages: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()


@step_value
class Draft:
    """A rooted token tree that a drafter proposes; the root (last emitted token) is implicit and
    never listed.

    tokens: (N,) token ids, a list of ints when drafted on the host, an int64 tensor when drafted on
    a device. parents: (N,) index of each node's parent in this draft, ``ROOT`` for the first level;
    parents come before children, siblings in trial order, and siblings may repeat a token. probs:
    (N, V) distribution each node was drawn from given its earlier siblings; None if the nodes were
    chosen deterministically. Ignored at temperature 0. passenger: (N,) bool, nodes computed for
    their logits only: they and their descendants are never accepted. score: (N,) from 0 to 1, the
    drafter's estimate that a node is accepted where its parent is; None without one. depth: of a
    tree whose parents are on the device, the most levels that it may have; None has them read.
    """

    tokens: Sequence[int] | Tensor = ()
    parents: Sequence[int] | Tensor = ()
    probs: Tensor | None = None
    passenger: Sequence[bool] | None = None
    # (N,) index into ``Method.sources``, where a node came from
    source: Sequence[int] | None = None
    score: Sequence[float] | None = None
    depth: int | None = None

    @classmethod
    def chain(
        cls, tokens: Sequence[int], source: int | None = None, probs: Tensor | None = None
    ) -> Draft:
        """A single path: ``chain([5, 6, 7])`` has parents ``[-1, 0, 1]``."""
        count = len(tokens)
        return cls(
            tokens, range(-1, count - 1), probs, None, None if source is None else [source] * count
        )

    def __len__(self) -> int:
        return len(self.tokens)


EMPTY = Draft()


@dataclass(frozen=True, slots=True)
class Typical:
    """Lossy acceptance at temperature > 0: a token passes above min(threshold, alpha *
    exp(-entropy)).

    marks: the tokens after which acceptance is lossy and exact again, None = it is always lossy.
    begun: lossy from the first token on.
    """

    threshold: float
    alpha: float
    marks: tuple[int, int] | None = None
    begun: bool = True


@dataclass(frozen=True, slots=True)
class Relaxed:
    """Lossy acceptance: a token passes among the ``top`` likeliest, at most ``delta`` below the
    best one's probability.

    marks, begun: see ``Typical``.
    """

    top: int
    delta: float
    marks: tuple[int, int] | None = None
    begun: bool = True


Lossy = Typical | Relaxed


@dataclass(frozen=True, slots=True)
class Needs:
    """The data that a method needs of every forward; a run that cannot provide it ends before it
    starts.

    hidden: indices into the L+1 hidden states (0 = embeddings, L = after the final norm), rows of
    all nodes. rows: drafts are chains from the root, one after the other, and are verified as a
    batch of rows over the shared prefix; False verifies the same draft as a tree, with the same
    outcome.
    """

    hidden: tuple[int, ...] = ()
    prompt_hidden: bool = False  # the same for all prompt rows of the prefill
    # how many top tokens of each node's raw logits (before temperature), 0 = none
    node_topk: int = 0
    prompt_topk: int = 0  # the same for all prompt rows of the prefill
    # the method reads those tokens on the host, where they come together with the step's picks
    read_topk: bool = False
    rows: bool = False
    # the drafter works while the target runs (``Drafter.launch`` and ``join``)
    concurrent: bool = False


@dataclass(frozen=True, slots=True)
class TopK:
    """The best tokens of each row of raw logits, best first."""

    ids: Tensor  # (rows, k) int64, on the host with ``Needs.read_topk``
    logits: Tensor  # (rows, k)


@dataclass(frozen=True, slots=True)
class Prefill:
    """The result of reading the prompt: the first emitted token, and the rows that ``Needs`` asks
    for.

    topk: (rows, k). rows is 1 (the last prompt token), or T where ``prompt_hidden`` or
    ``prompt_topk`` asks for every prompt row. given: the token is the prompt's last, which the
    prompt then lacks; it is the first root and not emitted.
    """

    token: int
    hidden: Mapping[int, Tensor] = field(default_factory=dict)  # layer -> (rows, D)
    topk: TopK | None = None
    given: bool = False


@step_value
class Step:
    """The outcome of one target forward.

    fed: (N+1,) int64 tokens of ALL rows, row 0 = root, row i + 1 = node i of the draft; only with
    topk or hidden.
    """

    root: int  # the token that the draft follows
    # 1 + len(path) token ids, cut at EOS or at the limit, and path with it
    emitted: tuple[int, ...]
    path: tuple[int, ...]  # accepted node numbers of the method's own draft, root side first
    done: bool  # the request ends here
    fed: Tensor | None = None
    topk: TopK | None = None  # (N+1, k) of the same rows
    hidden: Mapping[int, Tensor] = field(default_factory=dict)  # layer -> (N+1, D) of the same rows
    late: int = 0  # 1 where the last emitted token is the first of the late chain, else 0
    parents: Sequence[int] | None = None  # (N,) of the draft, where it had them on the device
