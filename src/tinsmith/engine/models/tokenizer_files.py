"""Writes tokenizer.json and tokenizer_config.json of a byte-level BPE tokenizer."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .files import write_json


@dataclass(frozen=True)
class ByteLevelBPE:
    """A GPT-2 style tokenizer: token ids are positions in `tokens`, the first `special_count` are special."""

    tokens: Sequence[str]
    merges: Sequence[str]
    special_count: int
    split_digits: bool
    bos: str
    eos: str
    pad: str
    unk: str
    chat_template: str
    max_length: int


def write_tokenizer(folder: Path, bpe: ByteLevelBPE) -> None:
    """Write both files; `AutoTokenizer.from_pretrained(folder)` reads them."""
    write_json(folder / "tokenizer.json", tokenizer_json(bpe))
    write_json(
        folder / "tokenizer_config.json",
        {
            "add_prefix_space": False,
            "bos_token": bpe.bos,
            "chat_template": bpe.chat_template,
            "clean_up_tokenization_spaces": False,
            "eos_token": bpe.eos,
            "model_max_length": bpe.max_length,
            "pad_token": bpe.pad,
            # Takes tokenizer.json as it is, where GPT2Tokenizer would rebuild it without the digit rule.
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": bpe.unk,
        },
    )


def tokenizer_json(bpe: ByteLevelBPE) -> dict[str, Any]:
    """The document of the `tokenizers` library."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special(i, token) for i, token in enumerate(bpe.tokens[: bpe.special_count])],
        "normalizer": None,
        "pre_tokenizer": (
            {"type": "Sequence", "pretokenizers": [digits, byte_level]} if bpe.split_digits else byte_level
        ),
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(bpe.tokens)},
            "merges": list(bpe.merges),
        },
    }


def _special(token_id: int, token: str) -> dict[str, Any]:
    return {
        "id": token_id,
        "content": token,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
