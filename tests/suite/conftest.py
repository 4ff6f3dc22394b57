"""The real files that the tests of suites and prompts read, each skipped with its reason where it
is absent.
"""

from pathlib import Path

import pytest


def present(path: Path) -> Path:
    if not path.exists():
        pytest.skip(f"{path} is absent")
    return path


@pytest.fixture(scope="session")
def spec_bench_file(data: Path) -> Path:
    return present(data / "suites" / "spec_bench" / "question.jsonl")


@pytest.fixture(scope="session")
def vicuna_trace(data: Path) -> Path:
    return present(data / "traces" / "vicuna-7b-v1.3" / "spec_bench_vanilla_run1.jsonl")


@pytest.fixture(scope="session")
def vicuna(data: Path):
    return load_tokenizer(data / "tokenizers" / "vicuna")


@pytest.fixture(scope="session")
def mistral(data: Path):
    return load_tokenizer(data / "tokenizers" / "mistral")


def load_tokenizer(folder: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(present(folder))
