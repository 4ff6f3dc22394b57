"""Hybrid: drafts of several methods in one tree, the nodes most likely to be accepted first, within a node budget.

No source has it in this form: the Cacheback paper proposes its branches beside any other drafter's (section 6), and
SAM-Decoding switches between two drafters. Here every member drafts, equal paths are merged, each node's chance is
estimated from how often nodes of its class were right so far, and the budget goes to the likeliest paths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

from methods.hybrid.merged_tree import AcceptanceRates, MergedTree
from specbench.method import Drafter, Method, Peer
from specbench.models.facade import ModelCard, Target
from specbench.types import Draft, InputError, Needs, Prefill, Step, named, require_count


class _Union(Drafter):
    def __init__(self, method: Hybrid, drafters: Sequence[Drafter]) -> None:
        self._method, self._drafters = method, drafters
        self._tree = MergedTree([Draft() for _ in drafters], method.rates)

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        method = self._method
        room = min(budget, method.member_budget)
        self._tree = MergedTree([drafter.propose(context, room) for drafter in self._drafters], method.rates)
        return self._tree.best(min(budget, method.budget), method.threshold)

    def observe(self, step: Step) -> None:
        accepted = len(step.path)
        for path, drafter in zip(self._tree.judge(step.emitted), self._drafters, strict=True):
            drafter.observe(replace(step, path=tuple(path[:accepted])))

    def finish(self, context: Sequence[int]) -> None:
        for drafter in self._drafters:
            drafter.finish(context)

    def stats(self) -> dict[str, float]:
        named = zip(self._method.sources, self._drafters, strict=True)
        return {f"{name}.{key}": value for name, drafter in named for key, value in drafter.stats().items()}


class Hybrid(Method):
    """members: name -> method whose drafts are merged; each observes every forward as if it drafted alone.

    budget: nodes of the merged tree. member_budget: nodes of each member's draft. threshold: least estimated chance
    of a node to be accepted for being fed. prior: chance of a node of a member without scores before anything is
    known; strength: [observations] the weight of this prior.
    """

    learned = ("rates",)

    def __init__(
        self,
        members: Mapping[str, Method],
        budget: int = 32,
        member_budget: int = 64,
        threshold: float = 0.0,
        prior: float = 0.3,
        strength: float = 8.0,
    ) -> None:
        require_count("budget", budget)
        require_count("member_budget", member_budget)
        for name, share in (("threshold", threshold), ("prior", prior)):
            if not 0 <= share <= 1:
                raise InputError(f"{name}={share}: expected a probability, 0 to 1")
        if not strength > 0:
            raise InputError(f"strength={strength}: expected more than 0")
        if not members:
            raise InputError("members: none; expected at least one method")
        for name, member in members.items():
            if isinstance(member, Peer):
                raise InputError(f"members.{name}: has its own decoding loop; expected a method that proposes drafts")
            if not member.lossless:
                raise InputError(f"members.{name}: is lossy; expected a lossless method")
        self.members, self.sources = dict(members), tuple(members)
        self.budget, self.member_budget, self.threshold = budget, member_budget, threshold
        self.rates = AcceptanceRates(len(members), prior, strength)

    @property
    def needs(self) -> Needs:
        """What any member needs."""
        return reduce(_both, (member.needs for member in self.members.values()), Needs())

    @property
    def pauses(self) -> bool:
        """Not where a member reads hidden states: the steps left out would be a path that was none of its draft."""
        return super().pauses and not self.needs.hidden

    @property
    def inputs(self) -> tuple[str, ...]:
        """The members' files."""
        return tuple(path for member in self.members.values() for path in member.inputs)

    def check(self, model: ModelCard) -> None:
        """Check every member."""
        for name, member in self.members.items():
            with named(f"members.{name}."):
                member.check(model)

    def bind(self, target: Target) -> None:
        """Bind every member. Raises InputError for one whose drafts cannot be merged."""
        for name, member in self.members.items():
            with named(f"members.{name}."):
                member.bind(target)
            if reason := _unfit(member):
                raise InputError(
                    f"members.{name}: {reason}; expected a method that proposes a tree from tokens or top-k"
                )
        tree = MergedTree([Draft.chain([1, 2])], AcceptanceRates(1, 0.5, 1.0))  # compile, so that no request does
        tree.best(1, 0.0)
        tree.judge([1])

    def reset(self) -> None:
        """Every member forgets, and so do the rates."""
        self.rates.clear()
        for member in self.members.values():
            member.reset()

    def private(self) -> Method | None:
        """See ``Method.private``, of every member."""
        own, members = super().private(), {name: member.private() for name, member in self.members.items()}
        if not isinstance(own, Hybrid) or None in members.values():
            return None
        own.members = {name: member for name, member in members.items() if member is not None}
        return own

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """Every member begins, under a seed of its own."""
        members = enumerate(self.members.values())
        return _Union(self, [member.begin(prompt, prefill, seed + number) for number, member in members])

    def state_bytes(self) -> int:
        """Bytes of the members' state."""
        return sum(member.state_bytes() for member in self.members.values())

    def close(self) -> None:
        """Close every member."""
        for member in self.members.values():
            member.close()


def _unfit(member: Method) -> str:
    """Why a method cannot be a member; empty if it can."""
    needs = member.needs
    if needs.hidden or member.by_node:
        return "reads a step by its own draft's nodes, and the merged tree has others"
    if needs.rows:
        return "drafts rows for a batch"
    return "drafts while the target runs" if needs.concurrent else ""


def _both(first: Needs, second: Needs) -> Needs:
    """What serves both."""
    return Needs(
        node_topk=max(first.node_topk, second.node_topk),
        prompt_topk=max(first.prompt_topk, second.prompt_topk),
    )
