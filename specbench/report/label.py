"""The printed form of names and figures; NaN is printed as a dash."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from specbench.records.record import CONTROL

BLANK = "\N{EN DASH}"
_DISPLAY = {  # as papers write them
    "cacheback": "Cacheback",
    "cacheback_no_frozen": "Cacheback (no frozen table)",
    "cacheback_only_frozen": "Cacheback (frozen table only)",
    "card": "CARD",
    "ctranslate2": "CTranslate2",
    "dflash": "DFlash",
    "eagle": "EAGLE",
    "eagle2": "EAGLE-2",
    "eagle3": "EAGLE-3",
    "foreign_draft": "Foreign draft model",
    "hf_assisted": "HF assisted generation",
    "hf_compiled": "HF generate, compiled",
    "hf_generate": "HF generate",
    "hf_prompt_lookup": "HF prompt lookup",
    "hybrid": "Hybrid",
    "hybrid_frozen": "Hybrid (frozen table)",
    "hydra_heads": "Hydra",
    "jacobi": "Jacobi",
    "logit_spec": "LogitSpec",
    "lookahead": "Lookahead",
    "medusa": "Medusa",
    "mtp": "MTP",
    "n_grammys": "N-Grammys",
    "n_grammys_trie": "N-Grammys (trie)",
    "ngram_map_k": "n-gram map (llama.cpp, k)",
    "ngram_map_k4v": "n-gram map (llama.cpp, k4v)",
    "ngram_mod": "n-gram table (llama.cpp, mod)",
    "opt_tree": "OPT-Tree",
    "openvino_genai": "OpenVINO GenAI",
    "openvino_genai_draft": "OpenVINO GenAI (draft model)",
    "openvino_genai_lookup": "OpenVINO GenAI (lookup)",
    "ort_genai": "ONNX Runtime GenAI",
    "ort_genai_draft": "ONNX Runtime GenAI (draft model)",
    "ort_genai_lookup": "ONNX Runtime GenAI (lookup)",
    "ouroboros": "Ouroboros",
    "ouroboros_warm": "Ouroboros (warm)",
    "p_eagle": "P-EAGLE",
    "pard": "PARD",
    "pearl": "PEARL",
    "pld": "PLD",
    "pld_llama_cache": "PLD (llama.cpp, cache)",
    "pld_llama_simple": "PLD (llama.cpp)",
    "pld_vllm": "PLD (vLLM)",
    "rest": "REST",
    "sam": "SAM-Decoding",
    "sam_token_recycling": "SAM-Decoding + Token Recycling",
    "self_speculation": "Self-speculation",
    "sequoia": "Sequoia",
    "specinfer": "SpecInfer",
    "server": "Server",
    "speculative_sampling": "Speculative sampling",
    "ssd": "SSD (spacelike)",
    "suffix_decoding": "SuffixDecoding",
    "suffix_decoding_local": "SuffixDecoding (local)",
    "token_recycling": "Token Recycling",
    "token_recycling_hot": "Token Recycling (hot)",
}
TITLES = {CONTROL: "vanilla (A/A)"}


@dataclass(frozen=True, slots=True)
class Cell:
    """A printed figure. interval: '1.41, 1.45' or ''."""

    text: str
    interval: str = ""


def label(method: str, variant: str = "") -> str:
    """A method's name as printed: 'pld', 'pld [max_ngram=3]', 'vanilla (A/A)'."""
    title = TITLES.get(method, method)
    return f"{title} [{variant}]" if variant else title


def display_name(method: str) -> str:
    """A method as a paper names it: 'Token Recycling'; an unknown name is unchanged."""
    return _DISPLAY.get(method, method)


def format_number(value: float, decimals: int = 2) -> str:
    """1.234 -> '1.23'; NaN -> the blank sign."""
    return BLANK if math.isnan(value) else f"{value:.{decimals}f}"


def format_milliseconds(value: float) -> str:
    """[ms] A phase may take microseconds: 0.4 -> '0.400'."""
    return format_number(value, 3)


def format_microseconds(value: float) -> str:
    """[us] '0.42', '15.3', '1204'."""
    return format_rate(value)


def format_count(value: float) -> str:
    """12345.0 -> '12345'."""
    return BLANK if math.isnan(value) else f"{value:.0f}"


def format_rate(value: float) -> str:
    """[tokens/s] three significant digits or all before the point: '5.43', '38.5', '1204'."""
    if math.isnan(value):
        return BLANK
    decimals = 2 if value < 10 else 1 if value < 1000 else 0
    return f"{value:.{decimals}f}"


def format_share(value: float) -> str:
    """0.1234 -> '12.3 %'; only an exact 1 prints as 100 %, only an exact 0 as 0 %."""
    if math.isnan(value):
        return BLANK
    if value in (0.0, 1.0):
        return f"{100 * value:.0f} %"
    return f"{min(99.9, max(0.1, 100 * value)):.1f} %"


def format_interval(low: float, high: float, decimals: int = 2) -> str:
    """'1.41, 1.45'; empty without an interval or a width (vanilla's MAT)."""
    if math.isnan(low) or math.isnan(high) or low == high:
        return ""
    return f"{low:.{decimals}f}, {high:.{decimals}f}"


def format_bounded(value: float, low: float, high: float) -> str:
    """'1.43 [1.41, 1.45]'; the figure alone without an interval."""
    bounds = format_interval(low, high)
    return format_number(value) + (f" [{bounds}]" if bounds else "")


def break_lines(name: str, width: int) -> str:
    """A long name on several lines of at most ``width`` characters, cut after a separator where there is one."""
    lines = [""]
    for part in re.findall(r"[^_,\s-]*[_,\s-]?", name):
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    pieces = [line[start : start + width] for line in lines for start in range(0, len(line), width)]
    return "\n".join(piece.strip() for piece in pieces if piece.strip())
