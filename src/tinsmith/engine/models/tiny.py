"""`tiny-llama` and `tiny-qwen3`: complete models made from a seed in a second, for tests and first steps.

They know nothing, but everything about them is real: architecture, tokenizer, chat template, stop token.
"""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cache import OnProgress
from .files import write_json, write_weights
from .tokenizer_files import ByteLevelBPE, write_tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CONTEXT_LENGTH = 4096
SIZE_BYTES = 600_000
VOCABULARY = 512
HIDDEN = 64
LAYERS = 2
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# What the merges are learned from; written for this file.
TEXT = """\
A tinker mends pots wherever he stands. A tinsmith has a shop, and in the shop there is a bench and a fire.
The user says what the model should learn; the assistant answers with what it has learned so far.
What is the capital of France? The capital of France is Paris. What is the answer? The answer is yes.
Once upon a time there was a small model that wanted to learn the names of all the rivers. It read one book,
then another, and then it read the first book again. Each time the loss was a little lower than before.
def add(first, second): return first + second
def multiply(first, second): return first * second
The sum of one and two is three. The sum of two and three is five. The user and the assistant take turns.
Please write a short story about the weather. It was raining in the morning, and sunny in the evening.
People often think that water is simple, but most things that look simple are hard to explain in a few words.
First measure twice, then cut once; every number should come from where it says it comes from.
If you cannot do something, say so clearly, give the reason, and tell the reader what would help instead.
"""


def build_llama(folder: Path, on_progress: OnProgress) -> None:
    """Grouped query heads, and an output matrix of its own."""
    on_progress("making tiny-llama")
    config = _common() | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "head_dim": 16,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    }
    _write(folder, config, seed=1)


def build_qwen3(folder: Path, on_progress: OnProgress) -> None:
    """Norms on q and k, heads wider than hidden / heads, and the embedding as output matrix."""
    on_progress("making tiny-qwen3")
    config = _common() | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "head_dim": 32,
        "tie_word_embeddings": True,
    }
    _write(folder, config, seed=2)


def _common() -> dict[str, Any]:
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "dtype": "float32",
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": 128,
        "max_position_embeddings": CONTEXT_LENGTH,
        "num_attention_heads": 4,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": VOCABULARY,
    }


def _write(folder: Path, config: dict[str, Any], seed: int) -> None:
    write_json(folder / "config.json", config)
    special_ids = ("bos_token_id", "eos_token_id", "pad_token_id")
    write_json(folder / "generation_config.json", {key: config[key] for key in special_ids})
    write_tokenizer(folder, tokenizer())
    write_weights(folder, _weights(config, seed))


def _weights(config: dict[str, Any], seed: int) -> "dict[str, NDArray[np.float32]]":
    import numpy as np

    random = np.random.RandomState(seed)  # the one generator whose stream numpy promises never to change

    def normal(rows: int, columns: int, std: float) -> "NDArray[np.float32]":
        return (random.standard_normal((rows, columns)) * std).astype(np.float32)

    def linear(rows: int, columns: int) -> "NDArray[np.float32]":
        return normal(rows, columns, columns**-0.5)  # keeps the variance, so that every layer matters

    def norm(size: int) -> "NDArray[np.float32]":
        # Not all ones: a norm that is forgotten shall show.
        return (1 + 0.1 * random.standard_normal(size)).astype(np.float32)

    head_dim, ffn = config["head_dim"], config["intermediate_size"]
    query, key = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    # std 0.25 over 64 inputs gives logits a spread of about 2: far from flat, far from certain.
    weights = {"model.embed_tokens.weight": normal(VOCABULARY, HIDDEN, 0.25)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        weights |= {
            f"{prefix}.input_layernorm.weight": norm(HIDDEN),
            f"{prefix}.self_attn.q_proj.weight": linear(query, HIDDEN),
            f"{prefix}.self_attn.k_proj.weight": linear(key, HIDDEN),
            f"{prefix}.self_attn.v_proj.weight": linear(key, HIDDEN),
            f"{prefix}.self_attn.o_proj.weight": linear(HIDDEN, query),
            f"{prefix}.post_attention_layernorm.weight": norm(HIDDEN),
            f"{prefix}.mlp.gate_proj.weight": linear(ffn, HIDDEN),
            f"{prefix}.mlp.up_proj.weight": linear(ffn, HIDDEN),
            f"{prefix}.mlp.down_proj.weight": linear(HIDDEN, ffn),
        }
        if config["model_type"] == "qwen3":
            weights[f"{prefix}.self_attn.q_norm.weight"] = norm(head_dim)
            weights[f"{prefix}.self_attn.k_norm.weight"] = norm(head_dim)
    weights["model.norm.weight"] = norm(HIDDEN)
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = normal(VOCABULARY, HIDDEN, 0.25)
    return weights


def tokenizer() -> ByteLevelBPE:
    """Three special tokens, the 256 bytes, and as many merges as fill the vocabulary."""
    from tokenizers.pre_tokenizers import ByteLevel

    words = ByteLevel(add_prefix_space=False).pre_tokenize_str(TEXT)
    alphabet = sorted(ByteLevel.alphabet())
    merges = _learn_merges(Counter(word for word, _ in words), VOCABULARY - len(SPECIALS) - len(alphabet))
    return ByteLevelBPE(
        tokens=[*SPECIALS, *alphabet, *(left + right for left, right in merges)],
        merges=[f"{left} {right}" for left, right in merges],
        special_count=len(SPECIALS),
        split_digits=False,
        bos="<|im_start|>",
        eos="<|im_end|>",
        pad="<|endoftext|>",
        unk="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        max_length=CONTEXT_LENGTH,
    )


def _learn_merges(words: "Counter[str]", count: int) -> list[tuple[str, str]]:
    """Byte-pair encoding: join the most frequent pair, again and again; of equals the first by alphabet."""
    spelled = [(list(word), times) for word, times in words.items()]
    merges: list[tuple[str, str]] = []
    known: set[str] = set()
    while len(merges) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for symbols, times in spelled:
            for pair in pairwise(symbols):
                pairs[pair] += times
        # Two routes to one token ("a"+"bc", "ab"+"c") would leave ids without a token: keep the first.
        best = min((p for p in pairs if p[0] + p[1] not in known), key=lambda p: (-pairs[p], p))
        merges.append(best)
        known.add(best[0] + best[1])
        spelled = [(_join(symbols, best), times) for symbols, times in spelled]
    return merges


def _join(symbols: list[str], pair: tuple[str, str]) -> list[str]:
    joined: list[str] = []
    for symbol in symbols:
        if joined and (joined[-1], symbol) == pair:
            joined[-1] += symbol
        else:
            joined.append(symbol)
    return joined
