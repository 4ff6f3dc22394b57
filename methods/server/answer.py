"""One request's answer as it comes in: ids, the sizes of its chunks, text, and what the server says of its drafts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from methods.server.acceptance import Account, Told, reconcile
from methods.server.dialect import Chunk
from specbench.method import Emit
from specbench.types import CaseError


@dataclass(slots=True)
class StreamedAnswer:
    """url: of its server. limit: [tokens] that were asked for. told: the request's own account first.

    account: the steps that are kept.
    """

    url: str
    limit: int
    ids: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    told: list[Told] = field(default_factory=list)
    account: Account | None = None

    def take(self, chunk: Chunk, emit: Emit) -> None:
        """Report a chunk's tokens, whose ids are known in the end where it is text."""
        self.finish = chunk.finish or self.finish
        if chunk.told is not None:
            self.told = [chunk.told]
        if chunk.ids is not None and self.text == "":
            ids = [int(token) for token in chunk.ids]
            self.ids += ids
            if len(self.ids) > self.limit:
                raise CaseError(f"{self.url}: more than the {self.limit} tokens that were asked for")
        else:
            self.text += chunk.text
            ids = [0] if chunk.text else []
        if ids:
            self.sizes.append(len(ids))
            emit(ids)

    def settle(self, tokenizer: Any, eos: Collection[int], chunks_are_steps: bool) -> Account:
        """The answer's ids, and its steps from the account that holds; see ``reconcile``."""
        sizes = self.sizes
        if self.text:
            self.ids = list(tokenizer(self.text, add_special_tokens=False).input_ids)
        ended = self.finish == "stop" and not (self.ids and self.ids[-1] in eos)
        if ended and (end := tokenizer.eos_token_id) in eos:  # which many servers keep to themselves
            self.ids, sizes = [*self.ids, end], [*sizes, 1]
        told = [each for each in self.told if each.drafts != 0]
        if self.text and not self.told:
            self.account = Account(((1, 0),) * (len(self.ids) - 1), "text")
        elif self.text or not chunks_are_steps:
            self.account = reconcile(len(self.ids) - 1, None, told)
        else:  # the first chunk is the prefill's; where several steps were sent in it, they are not told apart
            self.account = reconcile(len(self.ids) - sum(sizes[:1]), sizes[1:], told)
        return self.account

    def stats(self) -> dict[str, float]:
        """Each account by its name: steps, drafted and accepted tokens, accepted by place."""
        found: dict[str, float] = {} if self.account is None else {f"source_{self.account.source}": 1.0}
        for each in self.told:
            figures = {"steps": each.drafts, "drafted": each.drafted, "accepted": each.accepted}
            found |= {f"{each.source}_{name}": float(value) for name, value in figures.items() if value is not None}
            places = each.per_position or [sum(each.histogram[place:]) for place in range(1, len(each.histogram))]
            found |= {f"{each.source}_accepted_{place}": float(value) for place, value in enumerate(places, 1)}
        found |= {"text_only": 1.0} if self.text else {"chunks": float(len(self.sizes))}
        return found
