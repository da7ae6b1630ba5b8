"""The tiny models: the same bytes each time, and real in every part."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinsmith.engine.models import Catalogue

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

NAMES = ["tiny-llama", "tiny-qwen3"]


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    return Catalogue(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def tokenizer(catalogue: Catalogue):
    return transformers.AutoTokenizer.from_pretrained(catalogue.resolve("tiny-llama").folder)


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", NAMES)
def test_the_same_bytes_each_time(catalogue: Catalogue, tmp_path: Path, name: str) -> None:
    """Made once here, and once in a process whose sets and dictionaries are ordered by another hash."""
    script = "import sys; from tinsmith.engine.models import *; Catalogue(sys.argv[1]).resolve(sys.argv[2])"
    for seed in "1", "2":
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", script, tmp_path / seed, name], check=True, env=environment)
        again = Catalogue(tmp_path / seed).resolve(name).folder
        assert _contents(again) == _contents(catalogue.resolve(name).folder)


@pytest.mark.parametrize("name", NAMES)
def test_every_weight_is_from_the_file(catalogue: Catalogue, name: str) -> None:
    entry = catalogue.resolve(name)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(entry.folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    assert (
        model.dtype == torch.float32 and model.config.max_position_embeddings == entry.context_length == 4096
    )


def test_the_two_cover_both_paths(catalogue: Catalogue) -> None:
    llama, qwen3 = (
        transformers.AutoModelForCausalLM.from_pretrained(catalogue.resolve(name).folder) for name in NAMES
    )
    assert not torch.equal(llama.lm_head.weight, llama.model.embed_tokens.weight)
    assert qwen3.lm_head.weight is qwen3.model.embed_tokens.weight
    assert qwen3.model.layers[0].self_attn.q_norm.weight.std() > 0
    assert qwen3.config.head_dim * qwen3.config.num_attention_heads != qwen3.config.hidden_size


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_neither_flat_nor_certain(catalogue: Catalogue, tokenizer, name: str) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(catalogue.resolve(name).folder).eval()
    ids = tokenizer("What is the capital of France?", return_tensors="pt").input_ids
    with torch.no_grad():
        logits = model(ids).logits[0]
        shorter = model(ids[:, 1:]).logits[0]
    assert 1 < logits.std(-1).mean() < 4
    assert logits.softmax(-1).max(-1).values.mean() < 0.5
    assert (logits[-1] - shorter[-1]).abs().max() > 0.01  # what stands before matters


def test_tokenizer_and_template(tokenizer) -> None:
    assert len(tokenizer) == 512 and tokenizer.eos_token_id == 2 and tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token_id == 0
    assert tokenizer.tokenize(" the user Ω") == ["Ġthe", "Ġuser", "Ġ", "Î", "©"]
    said = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}], tokenize=False
    )
    assert said == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo<|im_end|>\n"
    assert [i for i in tokenizer.encode(said, add_special_tokens=False) if i < 3] == [1, 2, 1, 2]


@settings(derandomize=True, deadline=None, database=None, max_examples=300)
@given(st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("<|im_end|> the"))))
def test_any_text_round_trips(tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
