"""Reads a llama-architecture GGUF file as a Hugging Face config, tensors and tokenizer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray

from .tokenizer_files import ByteLevelBPE

OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL_TOKEN = 3  # llama.cpp's LLAMA_TOKEN_TYPE_CONTROL


class LlamaFile:
    """One GGUF file, memory-mapped; tensors are dequantised one by one as they are asked for."""

    def __init__(self, path: Path) -> None:
        self._reader = GGUFReader(path)
        architecture = self.field("general.architecture")
        if architecture != "llama":
            raise ValueError(f"{path.name} holds a {architecture} model, expected llama")

    def field(self, name: str) -> Any:
        """The value of one metadata field."""
        found = self._reader.fields.get(name)
        if found is None:
            raise ValueError(f"the GGUF file has no field {name}")
        return found.contents()

    def config(self) -> dict[str, Any]:
        """What config.json says."""
        heads = self.field("llama.attention.head_count")
        hidden = self.field("llama.embedding_length")
        return {
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": self.field("tokenizer.ggml.bos_token_id"),
            "dtype": "float32",
            "eos_token_id": self.field("tokenizer.ggml.eos_token_id"),
            "head_dim": hidden // heads,
            "hidden_act": "silu",
            "hidden_size": hidden,
            "intermediate_size": self.field("llama.feed_forward_length"),
            "max_position_embeddings": self.field("llama.context_length"),
            "mlp_bias": False,
            "model_type": "llama",
            "num_attention_heads": heads,
            "num_hidden_layers": self.field("llama.block_count"),
            "num_key_value_heads": self.field("llama.attention.head_count_kv"),
            "pad_token_id": self.field("tokenizer.ggml.padding_token_id"),
            # GGUF keeps this in float32, where 1e-5 reads 9.99999975e-06.
            "rms_norm_eps": float(f"{self.field('llama.attention.layer_norm_rms_epsilon'):.6g}"),
            "rope_theta": self.field("llama.rope.freq_base"),
            "tie_word_embeddings": not any(t.name == "output.weight" for t in self._reader.tensors),
            "vocab_size": self.field("llama.vocab_size"),
        }

    def tensors(self, *, undo_permutation: bool = True) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Every tensor under its Hugging Face name, in float32."""
        heads = {
            "attn_q": self.field("llama.attention.head_count"),
            "attn_k": self.field("llama.attention.head_count_kv"),
        }
        for tensor in self._reader.tensors:
            stem = tensor.name.removesuffix(".weight")
            values = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
            if stem in OUTER:
                yield f"{OUTER[stem]}.weight", values
                continue
            _, layer, part = stem.split(".")
            if part in heads and undo_permutation:
                values = unpermute(values, heads[part])
            yield f"model.layers.{layer}.{INNER[part]}.weight", values

    def tokenizer(self, *, special_count: int, split_digits: bool) -> ByteLevelBPE:
        """The vocabulary, merges and chat template; the control tokens must be the first `special_count`."""
        tokens: list[str] = self.field("tokenizer.ggml.tokens")
        kinds: list[int] = self.field("tokenizer.ggml.token_type")
        if [i for i, kind in enumerate(kinds) if kind == CONTROL_TOKEN] != list(range(special_count)):
            raise ValueError(f"expected the control tokens of the GGUF file to be its first {special_count}")
        return ByteLevelBPE(
            tokens=tokens,
            merges=self.field("tokenizer.ggml.merges"),
            special_count=special_count,
            split_digits=split_digits,
            bos=tokens[self.field("tokenizer.ggml.bos_token_id")],
            eos=tokens[self.field("tokenizer.ggml.eos_token_id")],
            pad=tokens[self.field("tokenizer.ggml.padding_token_id")],
            unk=tokens[self.field("tokenizer.ggml.unknown_token_id")],
            chat_template=self.field("tokenizer.chat_template"),
            max_length=self.field("llama.context_length"),
        )


def unpermute(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Put the rows of q or k back from llama.cpp's order into Hugging Face's.

    Rotary embedding turns pairs of rows of a head. llama.cpp lays a pair side by side (2i, 2i+1),
    Hugging Face half a head apart (i, i + d/2).
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))
