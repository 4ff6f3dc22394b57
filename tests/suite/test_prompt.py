"""Prompts: token ids of real tokenizers, checked against text written out here and against pinned
ids.
"""

import hashlib
import json
import sys
import threading

import pytest
from jinja2.lexer import _lexer_cache
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from builders.suites import suite_with
from specbench.suite.prompt import PromptBuilder, answer_text
from specbench.types import InputError

SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
# The ids below, and those of all 560 prompts of Spec-Bench with recorded answers, were checked once
# against SentencePiece itself (tokenizer.model), each stretch between </s> encoded alone.
# fmt: off
LLAMA_2_IDS = [
    1, 518, 25580, 29962, 15043, 29991, 518, 29914, 25580, 29962, 6324, 29991, 29871, 2, 1, 518,
    25580, 29962, 1128, 526, 366, 29973, 518, 29914, 25580, 29962,
]
MISTRAL_IDS = [
    1, 733, 16289, 28793, 12014, 733, 28748, 16289, 28793, 12141, 2, 733, 16289, 28793, 767, 733,
    28748, 16289, 28793,
]
# fmt: on
SPEC_BENCH_TOKENS = 199893
SPEC_BENCH_SHA256 = "46aefe7578c06d2a8a382109faa55f738e74517c122d81e684734c2866ee644f"

CHAT = (
    "{% for m in messages %}{{ m['role'][0] + m['content'] + '|' }}{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
)


ENDLESS = {
    "loops in loops": (
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    ),
    "a text that doubles": (
        "{% set n = namespace(s='a') %}{% for a in range(60) %}{% set n.s = n.s * 2 %}{% endfor %}"
    ),
    "in a part that is marked": "{% generation %}{{ 'a' * 10**10 }}{% endgeneration %}",
    "in the second turn": "{% if messages | length > 1 %}{{ 'a' * 10**10 }}{% endif %}",
}


@pytest.mark.parametrize("template", ENDLESS.values(), ids=ENDLESS)
def test_a_template_without_an_end_is_refused(template):
    with pytest.raises(
        InputError,
        match=r"chat template of .* takes (over 3 s|more memory than .*) to write a short",
    ):
        PromptBuilder(byte_tokenizer(chat_template=template + CHAT), None)


def test_a_lock_of_another_thread_is_no_fault_of_the_template():
    """Jinja locks its cache while another thread compiles: the lock of a fork would never be
    released.
    """
    tokenizer, lock = (
        byte_tokenizer(chat_template="{{ messages[0]['content'] | trim }} " + CHAT),
        _lexer_cache._wlock,
    )
    lock.acquire()
    threading.Timer(1.0, lock.release).start()
    assert PromptBuilder(tokenizer, None).text(["Q"], []) == "Q uQ|a"


def byte_tokenizer(bos="<s>", closes=False, chat_template=None) -> PreTrainedTokenizerFast:
    """One token a byte, id 2 + its place in the byte alphabet; BOS is put in front of plain text if
    there is one.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 0, "</s>": 1} | {
        letter: number for number, letter in enumerate(alphabet, start=2)
    }
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    frame = " ".join(filter(None, ("<s>" if bos else "", "$A", "</s>" if closes else "")))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=frame, special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos, eos_token="</s>")
    wrapped.chat_template = chat_template
    return wrapped


@pytest.mark.parametrize("name", ["enable_thinking", "thinking"])
def test_thinking_is_the_templates_switch(name):
    jinja = (
        "{{ messages[-1].content }}{% if "
        + name
        + " is defined %}{{ ' on' if "
        + name
        + " else ' off' }}{% endif %}"
    )
    builders = [
        PromptBuilder(byte_tokenizer(chat_template=jinja), None, thinking=each)
        for each in (None, True, False)
    ]
    assert [builder.text(["Hi"], []) for builder in builders] == ["Hi", "Hi on", "Hi off"]
    for plain in (byte_tokenizer(chat_template="{{ messages[-1].content }}"), byte_tokenizer()):
        with pytest.raises(
            InputError, match=r"model\.thinking=false: the template of .* has no switch"
        ):
            PromptBuilder(plain, None if plain.chat_template else "raw", thinking=False)


def vicuna_text(turns, answers) -> str:
    """Spec-Bench's prompt for Vicuna, written out by hand."""
    text = SYSTEM + " "
    for turn, answer in zip(turns, answers, strict=False):
        text += f"USER: {turn} ASSISTANT: {answer}</s>"
    return text + f"USER: {turns[-1]} ASSISTANT:"


def test_every_prompt_of_spec_bench_with_the_recorded_answers(
    vicuna, spec_bench_file, vicuna_trace
):
    """And the ids of an answer are its text again."""
    builder, digest, tokens = PromptBuilder(vicuna, "vicuna_v1.1"), hashlib.sha256(), 0
    rows = map(json.loads, vicuna_trace.read_text().splitlines())
    answers = {str(row["question_id"]): row["choices"][0]["turns"] for row in rows}
    for case in suite_with("spec_bench", path=spec_bench_file).cases:
        for index in range(len(case.turns)):
            turns, earlier = case.turns[: index + 1], answers[case.id][:index]
            assert builder.text(turns, earlier) == vicuna_text(turns, earlier)
            ids = builder.ids(turns, earlier)
            digest.update(json.dumps(ids).encode())
            tokens += len(ids)
    assert builder.warnings == ()
    assert (tokens, digest.hexdigest()) == (SPEC_BENCH_TOKENS, SPEC_BENCH_SHA256)
    for answer in (turn for turns in list(answers.values())[:40] for turn in turns):
        ids = vicuna(answer, add_special_tokens=False).input_ids
        assert answer_text(vicuna, [*ids, vicuna.eos_token_id]) == answer


def test_the_start_token_is_there_once_whoever_writes_it(vicuna):
    """The tokenizer for the first turn of llama-2, or the template."""
    builder, turns = PromptBuilder(vicuna, "llama-2"), ["Hello!", "How are you?"]
    assert (
        builder.text(turns, ["Hi!"])
        == "[INST] Hello! [/INST] Hi! </s><s>[INST] How are you? [/INST]"
    )
    assert builder.ids(turns, ["Hi!"]) == LLAMA_2_IDS
    builder = PromptBuilder(vicuna, "llama2-chinese")
    assert builder.text(["Hello!"], []).startswith("<s></s>")
    assert builder.ids(["Hello!"], [])[:3] == [1, 2, 29871]


def test_mistral_by_its_own_chat_template(mistral):
    builder = PromptBuilder(mistral, None)
    assert builder.text(["hi", "what"], ["yo"]) == "<s>[INST] hi [/INST]yo</s>[INST] what [/INST]"
    ids = builder.ids(["hi", "what"], ["yo"])
    assert (
        ids
        == mistral(builder.text(["hi", "what"], ["yo"]), add_special_tokens=False).input_ids
        == MISTRAL_IDS
    )
    assert builder.warnings == ()


def test_a_system_message_replaces_the_templates_own():
    tokenizer = byte_tokenizer(chat_template=CHAT)
    assert (
        PromptBuilder(tokenizer, "vicuna_v1.1", "Be brief.").text(["Q"], [])
        == "Be brief. USER: Q ASSISTANT:"
    )
    assert (
        PromptBuilder(tokenizer, "llama-2", "S").text(["Q"], [])
        == "[INST] <<SYS>>\nS\n<</SYS>>\n\nQ [/INST]"
    )
    assert PromptBuilder(tokenizer, None, "S").text(["Q", "R"], [" A "]) == "sS|uQ|aA|uR|a"
    assert PromptBuilder(tokenizer, "raw", "S").text(["Q"], []) == "S\nQ"


def test_raw_joins_turns_and_answers_by_newlines():
    builder = PromptBuilder(byte_tokenizer(), "raw")
    assert (
        builder.text(["def f():\n    ", "again"], ["return 1"]) == "def f():\n    \nreturn 1\nagain"
    )
    assert builder.ids(["ab"], [])[0] == 0
    assert len(builder.ids(["ab"], [])) == 3
    with pytest.raises(ValueError, match="one turn more than answers"):
        builder.ids(["a"], ["b"])


@pytest.mark.parametrize(
    ("template", "text"), [("vicuna_v1.1", "Q"), ("raw", "Q"), ("raw", "<s>Q")]
)
def test_a_tokenizer_that_closes_texts_does_not_close_a_prompt(template, text):
    """Also if the text has the start token."""
    ids = PromptBuilder(byte_tokenizer(closes=True), template).ids([text], [])
    assert ids == PromptBuilder(byte_tokenizer(closes=False), template).ids(["Q"], [])
    assert (ids[0], ids.count(0), ids.count(1)) == (0, 1, 0)


def test_a_chat_template_without_the_start_token_is_followed_and_warned_about():
    with_bos = byte_tokenizer(chat_template="{{ bos_token }}" + CHAT)
    assert PromptBuilder(with_bos, None).warnings == ()
    assert PromptBuilder(with_bos, None).ids(["Q"], []).count(0) == 1
    builder = PromptBuilder(byte_tokenizer(chat_template=CHAT), None)
    assert builder.ids(["Q"], [])[0] != 0
    (warning,) = builder.warnings
    assert "writes no start token" in warning
    assert "'<s>'" in warning


def space_tokenizer(merges, name):
    """A Llama-shaped tokenizer of spaces, a and b whose runs of spaces are merged as ``merges``
    says.
    """
    vocabulary = {
        piece: number
        for number, piece in enumerate(["▁", "a", "b", "▁▁", "▁▁▁", "▁▁▁▁", "▁a", "▁b"])
    }
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return type(name, (PreTrainedTokenizerFast,), {})(tokenizer_object=tokenizer)


RUN_FIRST = [("▁", "▁"), ("▁▁", "▁▁"), ("▁▁", "▁"), ("▁", "a"), ("▁", "b")]
WORD_FIRST = [("▁", "a"), ("▁", "b"), ("▁", "▁"), ("▁▁", "▁")]


@pytest.mark.parametrize(
    ("merges", "name", "warned"),
    [
        (RUN_FIRST, "LlamaTokenizer", True),
        (WORD_FIRST, "LlamaTokenizer", False),
        (RUN_FIRST, "GemmaTokenizer", False),
    ],
)
def test_a_llama_tokenizer_that_takes_whole_runs_of_spaces_is_warned_about(merges, name, warned):
    warnings = PromptBuilder(space_tokenizer(merges, name), "raw").warnings
    assert [("rebuilt from tokenizer.model" in warning) for warning in warnings] == [True] * warned


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("vicuna", "did you mean vicuna_v1.1"),
        ("gemini", "writes no prompt under that name"),
        (None, "org/base has no chat template.*model.template.*raw.*vicuna_v1.1"),
    ],
)
def test_an_unknown_template_is_refused_with_close_matches(template, says):
    tokenizer = byte_tokenizer()
    tokenizer.name_or_path = "org/base"
    with pytest.raises(InputError, match=says):
        PromptBuilder(tokenizer, template)


def test_without_fschat_its_templates_name_the_package_and_the_others_still_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastchat.conversation", None)
    for template in ("vicuna_v1.1", None):
        with pytest.raises(InputError, match="not installed: pip install fschat"):
            PromptBuilder(byte_tokenizer(), template)
    assert PromptBuilder(byte_tokenizer(), "raw").text(["Q"], []) == "Q"


def test_an_answers_special_tokens_and_outer_white_space_are_left_out():
    tokenizer = byte_tokenizer()
    ids = tokenizer("  two\nlines </s>", add_special_tokens=False).input_ids
    assert ids[-1] == tokenizer.eos_token_id
    assert answer_text(tokenizer, ids) == "two\nlines"
    assert answer_text(tokenizer, []) == ""


def test_a_template_may_be_a_file(tmp_path):
    path = tmp_path / "chat.jinja"
    path.write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<answer>")
    assert PromptBuilder(byte_tokenizer(), str(path)).text(["Who?"], []) == "<user>Who?<answer>"
    path.write_text("{{ raise_exception('no role') }}")
    with pytest.raises(InputError, match=r"\(system, user\): no role"):
        PromptBuilder(byte_tokenizer(), str(path), "S")
