"""Which tokenizer a model has, and how to load it. transformers is only needed here."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Gated on the hub under their own name; these are open copies of the same tokenizer.
_LLAMA3_PREFIX, _LLAMA3_TOKENIZER = (
    "meta-llama/Llama-3",
    "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer",
)


def tokenizer_id(named: str | None, model_name: str | None) -> str:
    """What the service named, or what follows from the model's name: a folder or a hub id."""
    if named:
        return named if os.path.isdir(named) else named.partition(":")[0]
    if not model_name:
        raise ValueError("the service names neither a tokenizer nor a model; load the tokenizer yourself")
    if os.path.isdir(model_name):
        return model_name
    name = model_name.partition(":")[0]
    if name.startswith(_LLAMA3_PREFIX):
        return _LLAMA3_TOKENIZER
    parts = name.split("/")
    return "/".join(parts[:2]) if len(parts) == 3 else name


@lru_cache(maxsize=32)
def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or a hub id; loaded once per process."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ImportError("get_tokenizer() needs transformers: pip install transformers") from error
    load: Any = AutoTokenizer.from_pretrained
    tokenizer: PreTrainedTokenizerBase = load(name, trust_remote_code=False)
    return tokenizer
