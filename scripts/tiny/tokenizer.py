"""The tokenizer: byte-level BPE trained on the corpus, with special tokens between prompt and answer.

The alphabet holds all 256 bytes, so any text in any language survives encoding and decoding, and a digit never merges
with another digit. The chat template ends a prompt with ``<|assistant|>``: as that is a special token, no merge can
reach across the boundary, and prompt and answer tokenize alike whether together or apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tiny.corpus import documents
from tiny.document import Document

BOS, USER, ASSISTANT, END, PAD = "<|bos|>", "<|user|>", "<|assistant|>", "<|end|>", "<|pad|>"
VOCABULARY = 2048
CONTEXT = 4096
_PIECES = r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|end|>"
    "{% else %}<|user|>{{ message['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def _texts(count: int, seed: int) -> Iterator[str]:
    """Turns and answers of the first documents of a seed."""
    for document in islice(documents(seed), count):
        yield from document.turns
        yield from document.answers


def train_tokenizer(count: int = 20_000, seed: int = 1) -> PreTrainedTokenizerFast:
    """Train the tokenizer on ``count`` documents and wrap it with special tokens and chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, BOS, USER, ASSISTANT, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(count, seed), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, target: Path) -> None:
    """Write the tokenizer so that both old and new versions of transformers can read it.

    The class is written under its long-standing name and the chat template goes into ``tokenizer_config.json``.
    """
    tokenizer.save_pretrained(target, save_jinja_files=False)
    path = target / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def encode(tokenizer: PreTrainedTokenizerFast, document: Document) -> tuple[list[int], list[bool]]:
    """Token ids of a conversation and, for each, whether the model is to answer with it."""
    vocabulary = tokenizer.get_vocab()
    bos, user, assistant, end = (vocabulary[token] for token in (BOS, USER, ASSISTANT, END))
    ids, answered = [bos], [False]
    for message in document.messages():
        reply = message["role"] == "assistant"
        text = tokenizer(message["content"], add_special_tokens=False)["input_ids"]
        tail = [end] if reply else []
        ids += [assistant if reply else user, *text, *tail]
        answered += [False, *[reply] * (len(text) + len(tail))]
    return ids, answered
