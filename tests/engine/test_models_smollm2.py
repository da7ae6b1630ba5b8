"""The embedded model: fetched and converted for real, it has the hub's tokenizer and speaks English."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinsmith.engine.models import Catalogue, ModelEntry

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

PARAGRAPH = (
    "The Industrial Revolution began in Great Britain in the eighteenth century. Before it, most people "
    "lived in villages and worked the land by hand. New machines, driven first by water and then by steam, "
    "changed how cloth, iron and tools were made. Workers moved to the towns, where factories needed many "
    "hands, and the railways carried coal and goods between them."
)
# The published tokenizer.json of HuggingFaceTB/SmolLM2-135M-Instruct.
HUB_TOKENIZER_SHA256 = "9ca9acddb6525a194ec8ac7a87f24fbba7232a9a15ffa1af0c1224fcd888e47c"
# SmolLM2's vocabulary lacks the bytes of these control characters and of U+40000 and above; it drops them.
LOST = set(map(chr, (0x04, 0x06, 0x13, 0x14, 0x16, 0x1D)))


@pytest.fixture(scope="module")
def entry() -> ModelEntry:
    return Catalogue().resolve(
        "SmolLM2-135M-Instruct"
    )  # in the user's cache: the second run downloads nothing


@pytest.fixture(scope="module")
def tokenizer(entry: ModelEntry):
    return transformers.AutoTokenizer.from_pretrained(entry.folder, local_files_only=True)


@pytest.fixture(scope="module")
def model(entry: ModelEntry):
    return transformers.AutoModelForCausalLM.from_pretrained(entry.folder, local_files_only=True).eval()


def test_the_folder_is_complete_and_small(entry: ModelEntry) -> None:
    assert entry.name == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert entry.kind == "built-in" and entry.on_disk and entry.context_length == 8192
    assert sorted(path.name for path in entry.folder.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert 538_000_000 < entry.size_bytes < 545_000_000


def test_the_config_is_the_published_one(model) -> None:
    config = model.config
    assert config.model_type == "llama" and model.dtype == torch.float32
    assert (config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (30, 576, 1536)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (9, 3, 64)
    assert (config.vocab_size, config.max_position_embeddings) == (49152, 8192)
    assert config.rms_norm_eps == 1e-5 and config.rope_parameters["rope_theta"] == 100_000
    assert config.tie_word_embeddings and model.lm_head.weight is model.model.embed_tokens.weight
    assert model.generation_config.eos_token_id == 2


def test_the_tokenizer_is_the_published_one_byte_for_byte(entry: ModelEntry) -> None:
    written = (entry.folder / "tokenizer.json").read_bytes()
    assert hashlib.sha256(written).hexdigest() == HUB_TOKENIZER_SHA256


def test_special_tokens(tokenizer) -> None:
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", 2)
    assert (tokenizer.bos_token, tokenizer.bos_token_id) == ("<|im_start|>", 1)
    assert (tokenizer.pad_token, tokenizer.unk_token) == ("<|im_end|>", "<|endoftext|>")
    assert len(tokenizer) == 49152 and tokenizer.model_max_length == 8192
    assert tokenizer("hello").input_ids == tokenizer("hello", add_special_tokens=False).input_ids


def test_digits_are_split(tokenizer) -> None:
    assert tokenizer.tokenize("in 2024") == ["in", "Ġ", "2", "0", "2", "4"]


def test_the_chat_template(tokenizer) -> None:
    said = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert said == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        " leading,  double and trailing spaces ",
        "line\r\nfeeds\n\n\tand tabs",
        "naïve façade, Ελληνικά, русский, 日本語, العربية, हिन्दी",
        "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301 \u200b\ufeff",
        "<|im_start|>user\nspecial<|im_end|> tokens<|endoftext|>inside",
        "3.14159 x 2,718 = ½",
        "def f(x):\n    return x**2  # '''don't'''",
    ],
)
def test_text_round_trips(tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@settings(derandomize=True, deadline=None, database=None, max_examples=200)
@given(st.text(st.characters(codec="utf-8", max_codepoint=0x3FFFF, exclude_characters=LOST)))
def test_any_text_round_trips(tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_special_tokens_inside_text_are_single_ids(tokenizer) -> None:
    ids = tokenizer.encode("a<|im_end|>b<|im_start|>", add_special_tokens=False)
    assert len(ids) == 4 and ids[1] == 2 and ids[3] == 1


def _loss(model, tokenizer) -> float:
    ids = tokenizer(PARAGRAPH, return_tensors="pt").input_ids
    with torch.no_grad():
        return model(ids, labels=ids).loss.item()


def test_rows_of_q_and_k_are_in_the_right_order(entry: ModelEntry, model, tokenizer) -> None:
    """3.05 nats a token as converted, 4.49 in llama.cpp's own row order."""
    right = _loss(model, tokenizer)
    assert right < 3.2
    left_as_it_was = transformers.AutoModelForCausalLM.from_pretrained(entry.folder, local_files_only=True)
    with torch.no_grad():
        for layer in left_as_it_was.model.layers:
            for linear in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                rows, columns = linear.weight.shape
                halves = linear.weight.view(rows // 64, 2, 32, columns)
                linear.weight.copy_(halves.transpose(1, 2).reshape(rows, columns))
    assert _loss(left_as_it_was, tokenizer) > right + 1


def test_unpermute_brings_pairs_half_a_head_apart() -> None:
    from tinsmith.engine.models.gguf_llama import unpermute

    rows = np.arange(12, dtype=np.float32).reshape(12, 1)  # two heads of six rows, pairs side by side
    assert unpermute(rows, heads=2)[:, 0].tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def test_it_answers_in_english(model, tokenizer) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = model.generate(**prompt, max_new_tokens=20, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"


def test_the_weights_are_readable_like_the_rest(entry: ModelEntry) -> None:
    modes = {path.stat().st_mode & 0o777 for path in Path(entry.folder).iterdir()}
    assert len(modes) == 1
