"""Widens a trained model of the Llama family: the same function, computed with the shapes of a
larger model.

The hidden units, query heads, inner columns and tokens of the trained model are the first ones of
the wide model; of the wide mean of squares that a norm divides by, the added units contribute
zeros, which the norm's weight and epsilon make up for. What is added has no effect on the hidden
states, because the columns that would read it, or the rows that would write it, are zero. An added
token's logit is far below all others: it reads one added hidden unit, which every token marks with
a small constant. All other added weights are small random numbers: the power that a GPU draws, and
so its clock, depends on the numbers that it multiplies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor

from specbench.models.family import find_head_size
from specbench.types import InputError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "phi3")
# rotary angles of these kinds depend on a pair's frequency alone
ANY_SIZE = ("default", "linear", "llama3")
SPREAD = 0.02  # standard deviation of weights that have no effect
# of an added hidden unit, times the embeddings' spread: no norm's mean of squares notices it
MARK = 2.0**-7
# of the marked unit: hidden states are far larger than embeddings
LAST_NORM, LIFT = "model.norm.weight", 2.0**10
AGAINST = -(2.0**15)  # times the marked unit in the logits of added tokens; float16 can express it
ENTRIES = {
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head": "head_dim",
    "vocab": "vocab_size",
}
# whose output is read
READERS = ("q_proj", "k_proj", "v_proj", "qkv_proj", "gate_proj", "up_proj", "gate_up_proj")
INTO_HIDDEN = ("fc", "input_proj", "linear")  # of heads; their rows write hidden units


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model. head: [numbers] of an attention head. vocab: [tokens] of its logits."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    vocab: int

    @classmethod
    def of(cls, config: Any) -> Shape:
        """The sizes in a configuration of the library."""
        text = config.get_text_config()
        found = {name: getattr(text, entry, None) for name, entry in ENTRIES.items()}
        return cls(
            **{
                **found,
                "head": find_head_size(text),
                "kv_heads": found["kv_heads"] or text.num_attention_heads,
            }
        )

    def __str__(self) -> str:
        """The sizes in one line."""
        return ", ".join(f"{name} {value}" for name, value in asdict(self).items())


@dataclass(frozen=True, slots=True)
class Widening:
    """Where each part of a trained model stands in a wide one. stored: its configuration. key: the
    setting.

    narrow, wide: the shapes of both. draft: sizes that a draft model is widened to.
    """

    stored: Any
    narrow: Shape
    wide: Shape
    key: str
    draft: Mapping[str, int | None] = field(default_factory=dict)

    @classmethod
    def to(cls, config: Any, sizes: Mapping[str, Any], key: str = "model.widen") -> Widening | None:
        """Widen a model of ``config`` to ``sizes``, None = its own; ``draft`` among them has those
        of a draft model.

        Returns None if no size is set. Raises InputError for a shape that has no room for the
        model.
        """
        larger = {
            name: size for name, size in sizes.items() if size is not None and name in ENTRIES
        }
        draft = sizes.get("draft") or {}
        if not larger:
            if any(draft.values()):
                raise InputError(
                    f"{key}.draft: the target is not widened; expected {key}.hidden or another size"
                )
            return None
        text = config.get_text_config()
        if text.model_type not in FAMILIES:
            raise InputError(
                f"{key}: the family {text.model_type} cannot be widened; expected"
                f" {', '.join(FAMILIES)}"
            )
        narrow = Shape.of(config)
        found = cls(config, narrow, replace(narrow, **larger), key, draft)
        found._require_room()
        kind = (getattr(text, "rope_parameters", None) or {}).get("rope_type", "default")
        if found.wide.head != narrow.head and kind not in ANY_SIZE:
            raise InputError(
                f"{key}.head: rotary positions of type {kind} depend on it; expected {narrow.head}"
            )
        return found

    def note(self, path: str) -> str:
        """What a report says of the model. path: of the trained one."""
        return (
            f"The model is {Path(path).name}, widened: it computes what the trained model computes,"
            f" at the cost of {self.wide}."
        )

    def _require_room(self) -> None:
        narrow, wide = self.narrow, self.wide
        for each in fields(Shape):
            least, got = getattr(narrow, each.name), getattr(wide, each.name)
            if got < least and each.name != "kv_heads":
                raise InputError(
                    f"{self.key}.{each.name}={got}: the model has {least}; expected at least that"
                )
        if wide.vocab > narrow.vocab and wide.hidden == narrow.hidden:
            raise InputError(
                f"{self.key}.vocab={wide.vocab}: added tokens need an added hidden unit, so that"
                f" none is ever drawn; expected {self.key}.hidden above {narrow.hidden}, or a"
                f" vocabulary of {narrow.vocab}"
            )
        if wide.head % narrow.head:
            raise InputError(
                f"{self.key}.head={wide.head}: expected a multiple of the model's {narrow.head}"
            )
        if wide.heads % wide.kv_heads:
            raise InputError(
                f"{self.key}.kv_heads={wide.kv_heads}: expected a divisor of heads={wide.heads}"
            )
        if (least := narrow.kv_heads * self._copies) > wide.kv_heads:
            raise InputError(
                f"{self.key}.kv_heads={wide.kv_heads}: the {narrow.heads} query heads of the model"
                f" share {narrow.kv_heads} key heads, which takes {least} in groups of"
                f" {wide.heads // wide.kv_heads}; expected more key heads"
            )

    @property
    def _group(self) -> int:
        """Query heads that share a key head, in the wide model."""
        return self.wide.heads // self.wide.kv_heads

    @property
    def _shared(self) -> int:
        """Query heads that share a key head, in the narrow model."""
        return self.narrow.heads // self.narrow.kv_heads

    @property
    def _copies(self) -> int:
        """Wide key heads that each key head of the model is copied to, if its group is larger than
        a wide one.
        """
        return -(-self._shared // self._group)

    def config(self) -> Any:
        """The wide model's configuration. Raises InputError for sizes that the library refuses."""
        entries = {ENTRIES[name]: size for name, size in asdict(self.wide).items()}
        stored = self.stored.to_dict()
        if kinds := stored.get("layer_types"):
            entries["layer_types"] = [
                kinds[place % len(kinds)] for place in range(self.wide.layers)
            ]
        entries["rms_norm_eps"] = self._epsilon(stored["rms_norm_eps"])
        try:
            return type(self.stored).from_dict({**stored, **entries})
        except (ValueError, StrictDataclassError) as error:
            reason = str(error).strip().splitlines()[-1].strip()
            raise InputError(
                f"{self.key}: no {self.stored.model_type} has these sizes ({reason})"
            ) from error

    def head_config(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration of a trained head of the narrow model, nested or not, for one of the
        wide model.

        Raises InputError for a head of another width than the model's.
        """
        found: dict[str, Any] = dict(raw)
        found |= {
            name: self.head_config(part) for name, part in raw.items() if isinstance(part, Mapping)
        }
        if found.get("hidden_size") is None:
            return found
        if found["hidden_size"] != self.narrow.hidden:
            raise InputError(
                f"{self.key}: a head of hidden_size={found['hidden_size']} cannot be widened;"
                f" expected the model's {self.narrow.hidden}"
            )
        sizes = {
            ENTRIES[name]: getattr(self.wide, name)
            for name in ("hidden", "heads", "kv_heads", "head", "vocab")
        }
        inner = max(self.wide.intermediate, int(found["intermediate_size"]))
        epsilon = self._epsilon(float(found.get("rms_norm_eps", 1e-6)))
        return {**found, **sizes, "intermediate_size": inner, "rms_norm_eps": epsilon}

    def _epsilon(self, epsilon: float) -> float:
        return epsilon * self.narrow.hidden / self.wide.hidden

    def fill(self, model: Any, stored: Mapping[str, Tensor]) -> None:
        """Write the weights of the narrow model into ``model``, a wide one with random weights, in
        place.

        stored: name -> weight, on the host. Added layers pass the hidden states on.
        """
        named = dict(model.named_parameters())
        with torch.no_grad():
            for name, weight in named.items():
                part = stored.get(name)
                if part is not None:
                    self._place(name, part, weight, _normed(stored))
                elif name.endswith(
                    ("o_proj.weight", "o_proj.bias", "down_proj.weight", "down_proj.bias")
                ):
                    weight.zero_()
        for module in model.modules():
            for name in ("q_norm", "k_norm"):
                if hasattr(module, name):
                    norm = getattr(module, name)
                    norm.variance_epsilon *= (
                        self.wide.hidden / self.narrow.hidden * self.narrow.head / self.wide.head
                    )

    def widen_head(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a trained head of the narrow model, for the wide one; added weights are
        seeded.
        """
        random, wide = torch.Generator().manual_seed(0), {}
        for name, weight in state.items():
            if not weight.is_floating_point():  # of token ids
                wide[name] = weight
                continue
            shape = [axis.size for axis in self._axes(name, weight)]
            drawn = torch.randn(shape, generator=random) * SPREAD
            wide[name] = self._place(name, weight, drawn.to(weight.dtype), _normed(state))
        return wide

    def _place(self, name: str, weight: Tensor, drawn: Tensor, normed: bool) -> Tensor:
        """Write a weight of the narrow model into ``drawn``, the wide one's of that name, in place.

        normed: whether each head's query and key are normed (Qwen3).
        """
        axes = self._axes(name, weight)
        module = _module(name)
        value = weight.to(drawn.device, torch.float32, copy=True)
        wider = (self.wide.head / self.narrow.head) ** 0.5
        # scores are divided by the root of the head's size
        if module in ("q_proj", "qkv_proj") and not normed:
            value[: self.narrow.heads * self.narrow.head] *= wider
        elif module == "k_norm":  # its mean is over the head; of q_norm, both factors cancel
            value /= wider
        elif "norm" in module and module != "q_norm":
            value *= (self.narrow.hidden / self.wide.hidden) ** 0.5
        if "norm" in module:
            drawn.fill_(1.0)
            if name == LAST_NORM and self.wide.vocab > self.narrow.vocab:
                drawn[self.narrow.hidden] = LIFT
        elif module in READERS:
            drawn[axes[0].own] = 0
        else:
            drawn.zero_()
        for dim, axis in enumerate(axes):
            value = value.index_select(dim, axis.source.to(value.device))
        drawn[torch.meshgrid(*(axis.to for axis in axes), indexing="ij")] = value.to(drawn.dtype)
        # no added token is ever drawn
        if module in ("embed_tokens", "lm_head") and len(drawn) > len(weight):
            if module == "embed_tokens":
                drawn[: len(weight), self.narrow.hidden] = float(weight.float().std()) * MARK
            drawn[len(weight) :, self.narrow.hidden] = AGAINST
        return drawn

    def _axes(self, name: str, weight: Tensor) -> list[_Axis]:
        """Where each dimension of a weight goes. Raises InputError for a tensor that no rule is
        known for.
        """
        module, (first, *others) = _module(name), weight.shape
        if module == "mask_hidden":
            return [
                *(_first(size, size) for size in (first, *others[:-1])),
                self._hidden(others[-1]),
            ]
        rows: dict[str, Callable[[], _Axis]] = {
            "q_norm": self._dims,
            "k_norm": self._dims,
            "q_proj": self._queries,
            "k_proj": self._keys,
            "v_proj": self._keys,
            "qkv_proj": lambda: _join(self._queries(), self._keys(), self._keys()),
            "gate_proj": lambda: self._inner(first),
            "up_proj": lambda: self._inner(first),
            "gate_up_proj": lambda: _join(self._inner(first // 2), self._inner(first // 2)),
            "embed_tokens": lambda: self._tokens(first),
            "lm_head": lambda: self._tokens(first),
        }
        columns = {"o_proj": self._queries, "down_proj": lambda: self._inner(others[0])}
        if module not in {*rows, *columns, *INTO_HIDDEN} and "norm" not in module:
            raise InputError(
                f"{self.key}: no rule widens the tensor {name}; expected a head of another kind"
            )
        found = [rows.get(module, lambda: self._hidden(first))()]
        return [*found, columns.get(module, lambda: self._hidden(others[0]))()] if others else found

    def _tokens(self, size: int) -> _Axis:
        """Of the vocabulary; a head's own, smaller one stays."""
        return _first(size, self.wide.vocab if size == self.narrow.vocab else size)

    def _hidden(self, size: int) -> _Axis:
        """Of one or several states next to each other."""
        return _join(*[_first(self.narrow.hidden, self.wide.hidden)] * (size // self.narrow.hidden))

    def _inner(self, size: int) -> _Axis:
        return _first(size, max(size, self.wide.intermediate))

    def _dims(self) -> _Axis:
        """Of a head: pairs that are rotated together keep their frequency, so they stand ``wide /
        narrow`` apart.
        """
        half, apart = self.narrow.head // 2, self.wide.head // self.narrow.head
        pairs = torch.arange(half) * apart
        to = torch.cat([pairs, pairs + self.wide.head // 2])
        return _Axis(
            to, torch.arange(self.narrow.head), torch.arange(self.wide.head), self.wide.head
        )

    def _queries(self) -> _Axis:
        """Each query head stands in the group of its key head, or of a copy of it."""
        places = []
        for query in range(self.narrow.heads):
            key, member = divmod(query, self._shared)
            copy, place = divmod(member, self._group)
            places.append(((key * self._copies + copy) * self._group + place, query))
        return self._heads(places, self.wide.heads)

    def _keys(self) -> _Axis:
        copies = range(self._copies)
        return self._heads(
            [
                (key * self._copies + copy, key)
                for key in range(self.narrow.kv_heads)
                for copy in copies
            ],
            self.wide.kv_heads,
        )

    def _heads(self, places: list[tuple[int, int]], count: int) -> _Axis:
        """places: (wide head, narrow head). count: of wide heads."""
        dims, wide, narrow = self._dims(), self.wide.head, self.narrow.head
        return _Axis(
            torch.cat([place * wide + dims.to for place, _ in places]),
            torch.cat([head * narrow + dims.source for _, head in places]),
            torch.cat([place * wide + dims.own for place, _ in places]),
            count * wide,
        )


@dataclass(frozen=True, slots=True)
class _Axis:
    """One dimension of a weight: entry ``source[i]`` of the narrow one goes to ``to[i]`` of the
    wide one.

    own: entries of the wide one in which nothing else may stand. size: of the wide one.
    """

    to: Tensor
    source: Tensor
    own: Tensor
    size: int


def _first(count: int, size: int) -> _Axis:
    places = torch.arange(count)
    return _Axis(places, places, places, size)


def _join(*parts: _Axis) -> _Axis:
    """Several axes one after the other."""
    to, source, own = list[Tensor](), list[Tensor](), list[Tensor]()
    start = read = 0
    for part in parts:
        to.append(part.to + start)
        source.append(part.source + read)
        own.append(part.own + start)
        start, read = start + part.size, read + int(part.source.max()) + 1
    return _Axis(torch.cat(to), torch.cat(source), torch.cat(own), start)


def _module(name: str) -> str:
    return name.split(".")[-2] if "." in name else name


def _normed(names: Iterable[str]) -> bool:
    return any(_module(name) == "q_norm" for name in names)
