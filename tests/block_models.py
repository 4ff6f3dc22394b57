"""Block drafters of DFlash's family, written out from their formulas without caches: every place
and row by itself.
"""

from __future__ import annotations

import torch
from torch import nn

from builders.models import VOCAB
from head_models import DFlash

BLOCK, GROUP, TAPS, RANK, TOP, STATE = 6, 16, 2, 5, 7, 12
LATTICE = {
    "lilicorr_candidate_topk": 4,
    "lilicorr_hidden_size": 32,
    "lilicorr_num_layers": 2,
    "lilicorr_num_heads": 4,
    "lilicorr_mlp_ratio": 1.5,
    "lilicorr_factor_dim": 6,
    "lilicorr_vector_eps": 1e-6,
    "lilicorr_logit_scale": 9.0,
}
# What each drafter's file has in ``dflash_config``, and at its top.
FILES = {
    "plain": ({}, {}),
    "causal": ({"causal": True}, {}),
    "windowed": (
        {},
        {
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 4,
            "use_sliding_window": True,
        },
    ),
    "windowed both ways": (
        {},
        {
            "layer_types": ["sliding_attention"] * 2,
            "sliding_window": 3,
            "is_causal": False,
            "use_sliding_window": True,
        },
    ),
    "windowed from the root": (
        {},
        {
            "layer_types": ["full_attention", "sliding_attention"],
            "sliding_window": 4,
            "use_sliding_window": True,
            "speculators_model_type": "dflash",
            "sliding_window_non_causal": False,
        },
    ),
    "windowed from the root both ways": (
        {},
        {
            "layer_types": ["sliding_attention"] * 2,
            "sliding_window": 3,
            "use_sliding_window": True,
            "speculators_model_type": "dflash",
            "sliding_window_non_causal": True,
        },
    ),
    "all windowed": ({"use_swa": True, "swa_window_size": 6, "causal": False}, {}),
    "domino": (
        {
            "projector_type": "domino",
            "emb_dim": RANK,
            "gru_hidden_dim": STATE,
            "shift_label": True,
            "pure_draft_prefix_len": 1,
        },
        {},
    ),
    "domino from the second row": (
        {
            "projector_type": "domino",
            "emb_dim": RANK,
            "gru_hidden_dim": STATE,
            "shift_label": False,
            "pure_draft_prefix_len": 0,
        },
        {},
    ),
    "dflash2": (
        {
            "conv_kernel_size": TAPS,
            "conv_group_size": GROUP,
            "selector_rank": RANK,
            "selector_top_k": TOP,
            "final_logit_softcapping": 3.0,
            "output_multiplier": 0.7,
            "input_embedding_scale": 1.3,
        },
        {"architectures": ["DFlash2DraftModel"], "is_causal": False},
    ),
    "lilicorr": (
        {"projector_type": "lilicorr", "lilicorr_enabled": True, "causal": False, **LATTICE},
        {"architectures": ["LiLiCorrDraftModel"]},
    ),
    "lilicorr of the drafter's width": (
        {
            **LATTICE,
            "lilicorr_hidden_size": 0,
            "lilicorr_num_layers": 1,
            "causal": True,
            "conv_kernel_size": TAPS,
            "conv_group_size": GROUP,
        },
        {},
    ),
    **{
        f"dspark {kind}": (
            {"markov_rank": 8, "markov_head_type": kind},
            {"architectures": ["Qwen3DSparkModel"]},
        )
        for kind in ("vanilla", "gated", "rnn")
    },
    "dspark from the second row": (
        {"markov_rank": 8, "markov_head_type": "rnn", "sample_from_anchor": False},
        {"architectures": ["Qwen3DSparkModel"]},
    ),
}


class Convolution(nn.Module):
    """Row t reads rows t, t - 1, ... of its block, by a base and by what the sublayer's input adds
    to it.
    """

    def __init__(self, hidden):
        super().__init__()
        self.base_kernel = nn.Parameter(torch.randn(2, TAPS, hidden))
        self.kernel_projection = nn.Linear(hidden, 2 * TAPS * (hidden // GROUP), bias=False)
        self.order = range(TAPS)

    def adjust(self, rows):
        self.added = (
            self.kernel_projection(rows)
            .view(len(rows), 2, TAPS, -1)
            .repeat_interleave(GROUP, dim=-1)
        )

    def forward(self, rows, side):
        out = torch.zeros_like(rows)
        for row in range(len(rows)):
            for tap, back in enumerate(self.order):
                if row >= back:
                    out[row] += (self.base_kernel[side, tap] + self.added[row, side, tap]) * rows[
                        row - back
                    ]
        return out


class LatticeLayer(nn.Module):
    def __init__(self, width, heads, inner, eps):
        super().__init__()
        self.attn_norm, self.mlp_norm = nn.RMSNorm(width, eps), nn.RMSNorm(width, eps)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, inner), nn.SiLU(), nn.Linear(inner, width))

    def forward(self, rows, bias):
        read = self.attn_norm(rows)[None]
        rows = rows + self.attn(read, read, read, attn_mask=bias, need_weights=False)[0][0]
        return rows + self.mlp(self.mlp_norm(rows))


class Lattice(nn.Module):
    def __init__(self, hidden, eps, settings):
        super().__init__()
        self.top, width = (
            settings["lilicorr_candidate_topk"],
            settings["lilicorr_hidden_size"] or hidden,
        )
        heads, factor = settings["lilicorr_num_heads"], settings["lilicorr_factor_dim"]
        inner = int(width * settings["lilicorr_mlp_ratio"])
        self.pass_hidden_proj, self.context_proj = (nn.Linear(hidden, width) for _ in range(2))
        self.token_proj = nn.Linear(hidden, width) if width != hidden else nn.Identity()
        self.feature_mlp = nn.Sequential(
            nn.LayerNorm(5), nn.Linear(5, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.slot_embedding = nn.Parameter(torch.randn(1, 1, BLOCK - 1, 1, width))
        self.rank_embedding = nn.Parameter(torch.randn(1, 1, 1, self.top, width))
        self.relative_slot_bias = nn.Parameter(torch.randn(heads, 2 * BLOCK - 1))
        self.same_slot_bias = nn.Parameter(torch.randn(heads))
        layers = settings["lilicorr_num_layers"]
        self.layers = nn.ModuleList(LatticeLayer(width, heads, inner, eps) for _ in range(layers))
        self.output_norm, self.anchor_norm = nn.RMSNorm(width, eps), nn.RMSNorm(width, eps)
        self.factor_input_proj = nn.Linear(3 * width, width)
        self.out_head, self.in_head, self.anchor_out_head = (
            nn.Linear(width, factor) for _ in range(3)
        )

    def edges(self, embed, anchor, states, logits, eps):
        """Tokens (n, k); the cosines (k,) of the first place and (n - 1, k, k) of neighbours."""
        logs, tokens = logits.log_softmax(-1).topk(self.top)
        count = len(tokens)
        rows, places = [], []
        for place in range(count):
            for rank in range(self.top):
                log = logs[place, rank]
                features = [
                    log,
                    log.exp(),
                    log - logs[place].max(),
                    rank / max(self.top - 1, 1),
                    float(rank == 0),
                ]
                rows.append(
                    self.token_proj(embed(tokens[place, rank]))
                    + self.pass_hidden_proj(states[place])
                    + self.feature_mlp(torch.tensor(features, dtype=logits.dtype))
                    + self.slot_embedding[0, 0, place, 0]
                    + self.rank_embedding[0, 0, 0, rank]
                )
                places.append(place)
        bias = torch.zeros(len(self.same_slot_bias), len(rows), len(rows), dtype=logits.dtype)
        for row, own in enumerate(places):
            for other, place in enumerate(places):
                bias[:, row, other] = self.relative_slot_bias[:, own - place + BLOCK - 1]
                bias[:, row, other] += self.same_slot_bias if own == place else 0
        hidden = torch.stack(rows)
        for layer in self.layers:
            hidden = layer(hidden, bias)
        hidden, anchor = self.output_norm(hidden), self.anchor_norm(self.context_proj(anchor))
        factor = [torch.cat([row, anchor, row * anchor]) for row in hidden]
        factor = nn.functional.silu(self.factor_input_proj(torch.stack(factor)))
        into, out = (
            nn.functional.normalize(head(factor), dim=-1, eps=eps).view(count, self.top, -1)
            for head in (self.in_head, self.out_head)
        )
        start = nn.functional.normalize(self.anchor_out_head(anchor), dim=-1, eps=eps)
        pairs = torch.stack([out[place] @ into[place + 1].T for place in range(count - 1)])
        return tokens, into[0] @ start, pairs


class BlockFamily(DFlash):
    """A drafter by the settings of its file. eps: of LiLiCorr's vectors."""

    def __init__(self, kind, seed=0, **extra):
        inner, top = FILES[kind]
        rank, markov = inner.get("markov_rank", 0), inner.get("markov_head_type")
        super().__init__(seed=seed, rank=rank, kind=markov, **extra)
        hidden = self.config.hidden_size
        self.inner, self.top = (
            {"block_size": BLOCK, "mask_token_id": 3, "target_layer_ids": [-1, 0, 1], **inner},
            {**top},
        )
        if "conv_kernel_size" in inner:
            for layer in self.layers:
                layer.attention_conv, layer.mlp_conv = Convolution(hidden), Convolution(hidden)
        if "selector_rank" in inner:
            self.candidate_selector = nn.Module()
            for name in ("predecessor_codebook", "successor_codebook"):
                self.candidate_selector.register_parameter(
                    name, nn.Parameter(torch.randn(VOCAB, RANK))
                )
            self.candidate_selector.hidden_projection = nn.Linear(hidden, RANK, bias=False)
        if "emb_dim" in inner:
            self.prefix_gru = nn.GRU(hidden, STATE, bias=False, batch_first=True)
            self.embed_proj = nn.Sequential(
                nn.Linear(hidden + STATE, RANK, bias=False),
                nn.SiLU(),
                nn.Linear(RANK, VOCAB, bias=False),
            )
            for weight in (*self.prefix_gru.parameters(), *self.embed_proj.parameters()):
                weight.data *= 4
        if "lilicorr_num_heads" in inner:
            self.lilicorr = Lattice(hidden, self.config.rms_norm_eps, inner)
        if rank:
            del self.confidence_head
            for name in ("markov_w1", "markov_w2"):
                self.markov_head[name].weight.data *= 8
        if markov == "rnn":
            self.markov_head["joint_proj"].weight.data[:, :rank] *= 20  # of the state
        for layer in self.layers:  # so that what is attended to decides
            layer.self_attn.o_proj.weight.data *= 8
        self.double()

    def saved(self, folder, inner=(), top=(), drop=()):
        """A folder with the file; further settings replace its own."""
        return self.save(
            folder, drop, **{**self.top, **dict(top)}, dflash_config={**self.inner, **dict(inner)}
        )

    @property
    def skipped(self):
        shifted = hasattr(self, "prefix_gru") and self.inner["shift_label"]
        spark = "DSpark" in str(self.top.get("architectures"))
        return 0 if shifted or self.inner.get("sample_from_anchor", spark) else 1

    def sees(self, layer, row, key):
        sliding = (self.top.get("layer_types") or ["full_attention"] * 2)[
            layer
        ] == "sliding_attention"
        if sliding and "speculators_model_type" in {**self.top, **self.inner}:
            both = {**self.top, **self.inner}["sliding_window_non_causal"]
            return key >= self.root - self.top["sliding_window"] and (both or key <= row)
        causal = self.inner.get(
            "causal", self.inner.get("is_causal", self.top.get("is_causal", sliding))
        )
        window = self.top["sliding_window"] if sliding else 10**9
        window = self.inner["swa_window_size"] if self.inner.get("use_swa") else window
        return row - key < window and (key <= row if causal else key - row < window)

    def embedded(self, model, ids):
        return super().embedded(model, ids) * self.inner.get("input_embedding_scale", 1.0)

    @torch.inference_mode()
    def places(self, model, features, root, count):
        """The function from a path of drafted tokens to the logits (V,) of the next of ``count``
        places.
        """
        embed = model.get_input_embeddings()
        rows = self.norm(self.block(model, features, root, count + self.skipped))
        states = rows[self.skipped :]
        logits = model.get_output_embeddings()(states) * self.inner.get("output_multiplier", 1.0)
        if cap := self.inner.get("final_logit_softcapping"):
            logits = cap * torch.tanh(logits / cap)
        if hasattr(self, "lilicorr"):
            anchor = self.hidden_norm(self.fc(torch.cat(features, dim=-1)))[-1]
            eps = self.inner["lilicorr_vector_eps"]
            tokens, start, pairs = self.lilicorr.edges(embed, anchor, states, logits, eps)

        def law(path):
            place, own = len(path), logits[len(path)].clone()
            if hasattr(self, "prefix_gru") and place >= self.inner["pure_draft_prefix_len"]:
                read = self.prefix_gru(embed(torch.tensor([[root, *path]])))[0][0, -1]
                own += self.embed_proj(torch.cat([states[place], read]))
            if hasattr(self, "markov_head"):
                read = [*[root] * (1 + self.skipped), *path]
                own += self.biases(read, rows)[place + self.skipped]
            if hasattr(self, "candidate_selector"):
                selector, kept = (
                    self.candidate_selector,
                    own.topk(self.inner["selector_top_k"]).indices,
                )
                before = selector.predecessor_codebook[[root, *path][-1]]
                gate = before * selector.hidden_projection(states[place])
                own = torch.full_like(own, -torch.inf).index_copy_(
                    0, kept, own[kept] + selector.successor_codebook[kept] @ gate
                )
            if hasattr(self, "lilicorr"):
                scores = (
                    start
                    if not place
                    else pairs[place - 1][tokens[place - 1].tolist().index(path[-1])]
                )
                own = torch.full_like(own, -torch.inf).index_copy_(
                    0, tokens[place], self.inner["lilicorr_logit_scale"] * scores
                )
            return own

        return lambda path: torch.inference_mode()(law)(tuple(path))
