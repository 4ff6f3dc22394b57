"""Trained heads as plain modules, whose ``state_dict`` has the published names, and what they would
draft from scratch.

Nothing here knows of caches: a head is run over its whole input every time.
"""

from __future__ import annotations

import heapq
import json

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import LlamaConfig, LlamaModel, Qwen3Config
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from builders.drafts import root_paths
from builders.models import VOCAB
from methods import dflash, eagle, hydra_heads, medusa
from methods.parts.branches import allocate_tree, copy_nodes, spell
from specbench.decode.loop import Request, decode
from specbench.measure.clock import Clock
from specbench.models.eager.engine import EagerEngine
from specbench.models.facade import ModelCard, Target
from specbench.types import Prefill

CONTEXT = 512
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "max_position_embeddings": 64,
}

# Values that a setting of a configuration may have, of every type that JSON has.
HOSTILE = (None, True, 0, -1, 1.5, 10**12, "x", [], ["x"], [1, 1], {}, {"x": 1})


def damaged(state, name) -> list[dict]:
    """The tensors of a checkpoint with one that is missing, renamed, of another shape or type, not
    finite, too many.
    """
    weight, other = state[name], {each: kept for each, kept in state.items() if each != name}
    changes = [
        {}, {f"{name}s": weight}, {name: weight[:-1].clone()}, {name: weight[None].clone()},
        {name: weight.to(torch.int8)}, {name: torch.full_like(weight, torch.nan)},
        {name: weight, f"{name}.bias": weight.clone()},
    ]  # fmt: skip
    if weight.ndim == 2 and weight.shape[0] != weight.shape[1]:
        changes.append({name: weight.T.contiguous()})
    return [other | change for change in changes]


def rename(folder, change) -> None:
    """Give the tensors of a checkpoint other names."""
    state = load_file(folder / "model.safetensors")
    save_file(
        {change(name): weight for name, weight in state.items()}, folder / "model.safetensors"
    )


# Heads of random weights.
HEADS = {
    "eagle": lambda: eagle.Eagle("random", tree="static"),
    "eagle2": lambda: eagle.Eagle("random", top_k=3, depth=2, total_tokens=12),
    "eagle3": lambda: eagle.Eagle3("random", top_k=3, depth=2, total_tokens=12),
    "mtp": lambda: eagle.Mtp("random"),
    "p_eagle": lambda: eagle.PEagle("random", length=4),
    "dflash": lambda: dflash.DFlash("random", length=4),
    "hydra": lambda: hydra_heads.HydraTree("random", heads=2),
    "medusa": lambda: medusa.Medusa("random", heads=2),
}


def card_of(model) -> ModelCard:
    dtype = str(model.dtype).removeprefix("torch.")
    return ModelCard("random", "random", model.config, None, CONTEXT, frozenset(), dtype, "cpu")


def target_of(model, sampling=None) -> Target:
    return Target(card_of(model), model, 256, sampling)


def bound(method, model, sampling=None):
    method.check(card_of(model))
    method.bind(target_of(model, sampling))
    method.reset()
    return method


def run(model, method, prompt=(5, 6, 7, 8), limit=60, sampling=None, seed=0, max_nodes=128):
    """The transcript of one request."""
    engine = EagerEngine(model, CONTEXT, frozenset(), max_nodes)
    return decode(
        engine, method, Request(list(prompt), limit, sampling, seed), Clock(torch.device("cpu"))
    )


def watched(method) -> list:
    """Filled by every draft of its requests: (context, draft)."""
    made, begin = [], method.begin

    def watch(prompt, prefill, seed):
        drafter = begin(prompt, prefill, seed)
        propose = drafter.propose
        drafter.propose = lambda context, budget: (
            made.append((list(context), propose(context, budget))) or made[-1][1]
        )
        return drafter

    method.begin = watch
    return made


@torch.inference_mode()
def states(model, ids) -> tuple[torch.Tensor, ...]:
    """L + 1 times (T, D), from an empty cache."""
    output = model(torch.tensor([list(ids)]), use_cache=False, output_hidden_states=True)
    return tuple(layer[0] for layer in output.hidden_states)


def causal(length, dtype):
    return torch.full((length, length), torch.finfo(dtype).min, dtype=dtype).triu(1)[None, None]


class Base(nn.Module):
    """Over a whole sequence: ``features`` (T, .) of tokens 0 to T - 1, ``ids`` tokens 1 to T; then
    a path of nodes.
    """

    def __init__(self, shape, extra, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.raw = {**shape, **extra}
        self.config = LlamaConfig.from_dict(dict(self.raw))
        self.config._attn_implementation = "eager"
        self.rope = [LlamaRotaryEmbedding(self.config)]

    def turn(self, hidden):
        return self.rope[0](hidden, torch.arange(hidden.shape[1])[None])

    @torch.inference_mode()
    def states_after(self, model, features, ids, path):
        """(H,) what the head wrote at the end of ``path``, drafted tokens below the root."""
        hidden, following = self.enter(features), torch.tensor(list(ids))
        for token in path:
            written = self.layer(model, hidden, following)[-1:]
            hidden, following = (
                torch.cat([hidden, written]),
                torch.cat([following, torch.tensor([token])]),
            )
        return self.layer(model, hidden, following)[-1]

    def save(self, folder, drop=(), **config):
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            name: weight.contiguous()
            for name, weight in self.state_dict().items()
            if name not in drop
        }
        save_file(state, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({**self.raw, **config}))
        return str(folder)


class Eagle1(Base):
    def __init__(self, seed=0, **extra):
        super().__init__(SHAPE, extra, seed)
        hidden = self.config.hidden_size
        self.fc = nn.Linear(2 * hidden, hidden, bias=self.raw.get("bias", True))
        layer = LlamaDecoderLayer(self.config, 0)
        layer.input_layernorm = nn.Identity()
        self.layers = nn.ModuleList([layer])
        nn.init.normal_(layer.post_attention_layernorm.weight, 1.0, 0.1)
        self.double()

    @staticmethod
    def enter(features):
        return features[0]

    def layer(self, model, hidden, ids):
        mixed = self.fc(torch.cat([model.get_input_embeddings()(ids), hidden], dim=-1))[None]
        mask = causal(len(ids), mixed.dtype)
        return self.layers[0](mixed, attention_mask=mask, position_embeddings=self.turn(mixed))[0]

    @torch.inference_mode()
    def logits(self, model, state):
        return model.get_output_embeddings()(state)

    def to_target(self, token):
        return token


class Eagle3(Base):
    """Attention over normed embedding next to normed state, written as the Llama layer with wider
    projections.
    """

    def __init__(self, seed=0, drafted=VOCAB, features=3 * 64, ids=None, **extra):
        super().__init__(SHAPE, {"draft_vocab_size": drafted, **extra}, seed)
        hidden = self.config.hidden_size
        self.fc = nn.Linear(features, hidden, bias=False)
        layer = self.midlayer = self.block(0)
        layer.hidden_norm = LlamaRMSNorm(hidden, eps=self.config.rms_norm_eps)
        for name in "qkv":
            old = getattr(layer.self_attn, f"{name}_proj")
            setattr(
                layer.self_attn, f"{name}_proj", nn.Linear(2 * hidden, old.out_features, bias=False)
            )
        self.norm = LlamaRMSNorm(hidden, eps=self.config.rms_norm_eps)
        norms = [
            layer.hidden_norm,
            layer.input_layernorm,
            layer.post_attention_layernorm,
            self.norm,
        ]
        if self.raw.get("model_type") == "qwen3":
            norms += [layer.self_attn.q_norm, layer.self_attn.k_norm]
        if (count := self.raw.get("num_hidden_layers", 1)) > 1:
            self.layers = nn.ModuleDict(
                {str(place): self.block(place) for place in range(1, count)}
            )
        if self.raw.get("norm_before_fc"):
            self.input_norm = LlamaRMSNorm(features, eps=self.config.rms_norm_eps)
            norms.append(self.input_norm)
        if self.raw.get("fc_norm"):
            self.fc_norm = nn.ModuleList(
                LlamaRMSNorm(features // 3, eps=self.config.rms_norm_eps) for _ in range(3)
            )
            norms.extend(self.fc_norm)
        if self.raw.get("embed_requires_grad"):
            self.embed_tokens = nn.Embedding(VOCAB, hidden)
        for norm in norms:
            nn.init.normal_(norm.weight, 1.0, 0.1)
        self.lm_head = nn.Linear(hidden, drafted, bias=False)
        self.double()
        if ids is not None:
            self.register_buffer("d2t", ids - torch.arange(drafted))
            self.register_buffer(
                "t2d", torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, ids, True)
            )

    def block(self, place):
        if self.raw.get("model_type") != "qwen3":
            return LlamaDecoderLayer(self.config, place)
        config = Qwen3Config(**{**SHAPE, "head_dim": 16, "num_hidden_layers": place + 1})
        config._attn_implementation = "eager"
        return Qwen3DecoderLayer(config, place)

    def enter(self, features):
        if self.raw.get("fc_norm"):
            features = [norm(each) for norm, each in zip(self.fc_norm, features, strict=True)]
        fused = torch.cat(list(features), dim=-1)
        return self.fc(self.input_norm(fused) if self.raw.get("norm_before_fc") else fused)

    def layer(self, model, hidden, ids):
        own = self.raw.get("embed_requires_grad")
        layer, embedded = (
            self.midlayer,
            (self.embed_tokens if own else model.get_input_embeddings())(ids),
        )
        normed = layer.hidden_norm(hidden)
        both = torch.cat([layer.input_layernorm(embedded), normed], dim=-1)[None]
        mixed = layer.self_attn(
            both, attention_mask=causal(len(ids), both.dtype), position_embeddings=self.turn(both)
        )
        hidden = (normed if self.raw.get("norm_before_residual") else hidden) + mixed[0][0]
        written = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        for later in self.layers.values() if hasattr(self, "layers") else ():
            mask = causal(len(ids), both.dtype)
            written = later(
                written[None], attention_mask=mask, position_embeddings=self.turn(both)
            )[0]
        return self.norm(written) if self.raw.get("norm_output") else written

    @torch.inference_mode()
    def logits(self, model, state):
        return self.lm_head(state if self.raw.get("norm_output") else self.norm(state))

    def to_target(self, token):
        return int(token + self.d2t[token]) if hasattr(self, "d2t") else token


class PEagle(Eagle3):
    """EAGLE-3 that reads ``mask`` and ``mask_hidden`` in place of what it drafted."""

    def __init__(self, mask=3, **options):
        options = {
            "embed_requires_grad": True,
            "speculators_model_type": "peagle",
            "mask_token_id": mask,
            **options,
        }
        super().__init__(**options)
        self.mask, width = mask, self.fc.in_features
        self.mask_hidden = nn.Parameter(torch.randn(1, 1, width, dtype=torch.float64))

    @torch.inference_mode()
    def levels(self, model, features, ids, count):
        """(count, Vd) logits of the tokens behind ``ids``, from one forward over everything."""
        masked = self.enter(self.mask_hidden[0].chunk(len(features), dim=-1)).expand(count - 1, -1)
        following = torch.tensor([*ids, *[self.mask] * (count - 1)])
        return self.logits(
            model, self.layer(model, torch.cat([self.enter(features), masked]), following)
        )[-count:]


class DFlash(Base):
    """A block that attends to itself and to fused states of the target, written out without a
    cache.
    """

    def __init__(
        self,
        seed=0,
        layers=2,
        read=3,
        drafted=VOCAB,
        ids=None,
        mask=3,
        rank=0,
        own=False,
        kind="vanilla",
        **extra,
    ):
        super().__init__({**SHAPE, "num_hidden_layers": layers, "model_type": "qwen3"}, extra, seed)
        config, self.mask = self.config, mask
        hidden, size = config.hidden_size, config.head_dim
        self.fc = nn.Linear(read * hidden, hidden, bias=False)
        self.layers = nn.ModuleList(LlamaDecoderLayer(config, place) for place in range(layers))
        self.norm, self.hidden_norm = (
            LlamaRMSNorm(hidden, eps=config.rms_norm_eps) for _ in range(2)
        )
        for layer in self.layers:
            layer.self_attn.q_norm, layer.self_attn.k_norm = (
                LlamaRMSNorm(size, config.rms_norm_eps) for _ in range(2)
            )
        for norm in (module for module in self.modules() if isinstance(module, LlamaRMSNorm)):
            nn.init.normal_(norm.weight, 1.0, 0.1)
        if ids is not None:
            self.lm_head = nn.Linear(hidden, drafted, bias=False)
            self.register_buffer("d2t", ids - torch.arange(drafted))
            self.register_buffer(
                "t2d", torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, ids, True)
            )
        if own:
            self.embed_tokens, self.lm_head = (
                nn.Embedding(VOCAB, hidden),
                nn.Linear(hidden, VOCAB, bias=False),
            )
        if rank:  # DSpark's
            heads = {
                "markov_w1": nn.Embedding(VOCAB, rank),
                "markov_w2": nn.Linear(rank, drafted, bias=False),
            }
            heads |= {"gated": {"gate_proj": nn.Linear(hidden + rank, rank)},
                      "rnn": {"joint_proj": nn.Linear(2 * rank + hidden, 3 * rank)}}.get(kind,
                      {})  # fmt: skip
            self.markov_head, self.kind = nn.ModuleDict(heads), kind
            self.confidence_head = nn.ModuleDict({"proj": nn.Linear(hidden + rank, 1)})
        self.double()

    @torch.inference_mode()
    def biases(self, tokens, hidden):
        """(levels, Vd) of the places behind these tokens, one place after the other; hidden:
        (levels, D).
        """
        heads, found = self.markov_head, []
        state = torch.zeros(heads["markov_w1"].embedding_dim, dtype=torch.float64)
        for token, place in zip(tokens, hidden, strict=False):
            read = heads["markov_w1"](torch.tensor(token))
            if self.kind == "gated":
                read = torch.sigmoid(heads["gate_proj"](torch.cat([place, read]))) * read
            if self.kind == "rnn":
                keep, new, out = heads["joint_proj"](torch.cat([state, read, place])).chunk(3)
                state, read = (
                    torch.sigmoid(keep) * state + torch.sigmoid(-keep) * torch.tanh(new),
                    torch.tanh(out),
                )
            found.append(heads["markov_w2"](read))
        return torch.stack(found)

    @torch.inference_mode()
    def chances(self, tokens, hidden):
        """(levels,) that the places behind these tokens are accepted."""
        known = self.markov_head["markov_w1"](torch.tensor(tokens))
        return torch.sigmoid(self.confidence_head["proj"](torch.cat([hidden, known], dim=-1)))[:, 0]

    @torch.inference_mode()
    def levels(self, model, features, root, rows):
        """(rows, Vd) logits of a block behind the committed tokens of ``features`` (T, D) each."""
        return self.project(self.norm(self.block(model, features, root, rows)), model)

    def project(self, hidden, model):
        """By its own output head, or the target's."""
        return (self.lm_head if hasattr(self, "lm_head") else model.get_output_embeddings())(hidden)

    def embedded(self, model, ids):
        return (
            self.embed_tokens if hasattr(self, "embed_tokens") else model.get_input_embeddings()
        )(ids)

    def sees(self, layer, row, key):
        """Whether the row at a position sees that of ``key``, both after or before the root."""
        return True

    @torch.inference_mode()
    def block(self, model, features, root, rows):
        """(rows, D) what the layers wrote, in front of the norm."""
        context = self.hidden_norm(self.fc(torch.cat(features, dim=-1)))
        self.root = len(context)
        hidden = self.embedded(model, torch.tensor([root, *[self.mask] * (rows - 1)]))
        total = len(context) + rows
        cos, sin = (part[0] for part in self.turn(torch.zeros(1, total, 1, dtype=hidden.dtype)))
        for place, layer in enumerate(self.layers):
            attention, read = layer.self_attn, layer.input_layernorm(hidden)
            convolved = hasattr(layer, "attention_conv")
            if convolved:
                layer.attention_conv.adjust(read)
                read = layer.attention_conv(read, 0)
            both = torch.cat([context, read])
            size = attention.head_dim
            query = turned(
                attention.q_norm(attention.q_proj(read).unflatten(-1, (-1, size))),
                cos[-rows:],
                sin[-rows:],
            )
            key = turned(
                attention.k_norm(attention.k_proj(both).unflatten(-1, (-1, size))), cos, sin
            )
            value = attention.v_proj(both).unflatten(-1, (-1, size))
            groups, out = query.shape[1] // key.shape[1], []
            for row in range(rows):
                seen = [at for at in range(total) if self.sees(place, len(context) + row, at)]
                mixed = []
                for head in range(query.shape[1]):
                    scores = key[seen, head // groups] @ query[row, head] * size**-0.5
                    mixed.append(scores.softmax(0) @ value[seen, head // groups])
                out.append(torch.cat(mixed))
            written = attention.o_proj(torch.stack(out))
            hidden = hidden + (layer.attention_conv(written, 1) if convolved else written)
            read = layer.post_attention_layernorm(hidden)
            if convolved:
                layer.mlp_conv.adjust(read)
                read = layer.mlp_conv(read, 0)
            written = layer.mlp(read)
            hidden = hidden + (layer.mlp_conv(written, 1) if convolved else written)
        return hidden

    def to_target(self, token):
        return int(token + self.d2t[token]) if hasattr(self, "d2t") else int(token)


def turned(states, cos, sin):
    """(rows, heads, size) turned to their positions."""
    first, second = states.chunk(2, dim=-1)
    return states * cos[:, None] + torch.cat([-second, first], dim=-1) * sin[:, None]


class Block(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.linear = nn.Linear(inputs, hidden)
        self.res_connection = nn.Linear(inputs, hidden) if inputs != hidden else nn.Identity()

    def forward(self, state):
        return self.res_connection(state) + nn.functional.silu(self.linear(state))


class Medusa(nn.ModuleList):
    def __init__(self, heads=4, blocks=1, hidden=64, seed=0):
        torch.manual_seed(seed)
        super().__init__(
            nn.Sequential(
                *(Block(hidden, hidden) for _ in range(blocks)),
                nn.Linear(hidden, VOCAB, bias=False),
            )
            for _ in range(heads)
        )
        self.double()


class Hydra(nn.Module):
    def __init__(self, config, heads=4, blocks=4, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        one = type(config).from_dict(
            {**config.to_dict(), "num_hidden_layers": 1, "layer_types": None}
        )
        one._attn_implementation = "eager"
        hidden = config.hidden_size
        self.prefix_embeding_layer = LlamaModel(one)
        tied = [Block(hidden, hidden) for _ in range(heads)]
        self.hydra_mlp = nn.ModuleList(
            nn.Sequential(
                nn.Dropout(),
                Block((head + 2) * hidden, hidden),
                *([nn.Dropout(), tied[head]] * (blocks - 1)),
            )
            for head in range(heads)
        )
        self.hydra_lm_head = nn.ModuleList(
            nn.Sequential(nn.Dropout(), nn.Linear(hidden, VOCAB)) for _ in range(heads)
        )
        self.double().eval()

    @torch.inference_mode()
    def logits(self, model, features, path):
        """(V,) below the last token of ``path``, whose first is the root."""
        prefix = self.prefix_embeding_layer(
            inputs_embeds=features[None], use_cache=False
        ).last_hidden_state[0, -1]
        head = len(path) - 1
        known = torch.cat([prefix, *model.get_input_embeddings()(torch.tensor(list(path)))])
        return self.hydra_lm_head[head](self.hydra_mlp[head](known))


def paths_of(draft) -> list[tuple[int, ...]]:
    """Every node of a draft as the tokens on the way to it."""
    return root_paths(draft.tokens, draft.parents)


def likeliest(law, levels, count) -> list[tuple[int, ...]]:
    """Paths of a tree, best first. law: path -> (Vd,) log probabilities of the next token."""
    heap, taken = [(0.0, ())], []
    while heap and len(taken) <= count:
        cost, path = heapq.heappop(heap)
        taken.append(path)
        if len(path) < levels:
            for token, each in enumerate(law(path).tolist()):
                if each > -torch.inf:
                    heapq.heappush(heap, (cost - each, (*path, token)))
    return taken[1:]


def branch_of(chains, merge, room) -> tuple[list[int], list[int], list[int]]:
    """Tokens, parents and chains of the nodes that ``spell`` makes of (n, length) chains."""
    tree, nodes = allocate_tree(min(room, chains.size)), np.empty((3, chains.size), np.int64)
    spell(tree, chains, room, merge)
    return tuple(nodes[:, : copy_nodes(tree, nodes)].tolist())


def features_of(model, method, ids):
    """The hidden states of ``ids`` that a method reads, (T, D) of each layer."""
    hidden = states(model, ids)
    return [hidden[layer] for layer in method.needs.hidden]


def begun(method, model, ids, seed=0):
    """A drafter behind ``ids``, all but the last of which are its prompt."""
    hidden = states(model, ids[:-1])
    rows = slice(None) if method.needs.prompt_hidden else slice(-1, None)
    given = {layer: hidden[layer][rows] for layer in method.needs.hidden}
    return method.begin(ids[:-1], Prefill(ids[-1], given), seed)


def draft_of(method, model, ids, budget=64, seed=0):
    """The draft behind ``ids``."""
    return begun(method, model, ids, seed).propose(ids, budget)
