"""The packed pass against transformers and autograd, for every family; packed, shared, cut: all the same."""

import itertools

import numpy as np
import pytest
import torch
from fast_support import FAMILIES, Packed, adapter, distance, reference, rows, tiny

from tinsmith.engine.fast import attention, head
from tinsmith.engine.fast.kernels import MIN_ROWS, best_kernel
from tinsmith.engine.fast.layout import micro_batches, share_prefixes
from tinsmith.engine.fast.model import read_decoder, why_not_fast


def all_close(one: Packed, other: Packed, bound: float = 1e-5) -> None:
    for run in range(len(one.logprobs)):
        for row, logprobs in one.logprobs[run].items():
            torch.testing.assert_close(logprobs, other.logprobs[run][row], atol=bound, rtol=bound)
        for name, gradient in one.gradients[run].items():
            assert distance(gradient, other.gradients[run][name]) < bound, name


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_computes_what_transformers_computes(family: str) -> None:
    model = tiny(family)
    weights, tokens = adapter(model, 4, seed=2), rows(70, 5, 41, 33)
    expected, gradients = reference(model, weights, tokens)
    assert why_not_fast(model) is None
    found = Packed(read_decoder(model), [(weights, tokens)])
    for row, logprobs in enumerate(expected):
        torch.testing.assert_close(found.logprobs[0][row], logprobs, atol=1e-4, rtol=0)
    assert found.gradients[0].keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert gradient.any(), name
        assert distance(found.gradients[0][name], gradient) < 1e-4, name
    # The modules still compute the same, now as views of the fused weights.
    again, _ = reference(model, weights, tokens)
    torch.testing.assert_close(again, expected)


@pytest.mark.parametrize(
    "layers", [("q_proj", "down_proj"), ("v_proj",), ("lm_head",), ("up_proj", "lm_head")]
)
def test_any_choice_of_layers(layers: tuple[str, ...]) -> None:
    model = tiny("llama")
    weights, tokens = adapter(model, 3, seed=2, layers=layers), rows(20, 31)
    _, gradients = reference(model, weights, tokens)
    found = Packed(read_decoder(model), [(weights, tokens)])
    assert found.gradients[0].keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert distance(found.gradients[0][name], gradient) < 1e-4, name


def test_packed_is_unpacked() -> None:
    model = tiny("qwen3")
    decoder, weights, tokens = read_decoder(model), adapter(model, 4, seed=2), rows(70, 5, 41, 33)
    all_close(Packed(decoder, [(weights, tokens)]), Packed(decoder, [(weights, tokens)], slots_at_once=1))


@pytest.mark.parametrize("family", ["llama", "mistral-window"])
def test_a_shared_prompt_is_computed_once_and_changes_nothing(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(family)
    decoder, weights = read_decoder(model), adapter(model, 4, seed=2)
    one, other = rows(60, 52, 75, shared=40, seed=1), rows(21, 30, 20, shared=20, seed=2)
    alone, twin = rows(50, seed=3)[0], one[0].copy()
    tokens = [one[0], other[0], one[1], alone, other[1], one[2], twin, other[2]]
    shared = Packed(decoder, [(weights, tokens)])
    monkeypatch.setattr("tinsmith.engine.fast.layout.MIN_SHARED", 10**9)
    unshared = Packed(decoder, [(weights, tokens)])
    assert unshared.slots == sum(map(len, tokens))
    assert shared.slots <= unshared.slots - 3 * 40 - 2 * 20
    all_close(shared, unshared)


def test_chunked_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("qwen2-window")
    decoder, weights = read_decoder(model), adapter(model, 4, seed=2)
    tokens = [*rows(70, 5, 41, 33), *rows(40, 50, shared=30, seed=3)]
    whole = Packed(decoder, [(weights, tokens)])
    monkeypatch.setattr(head, "LOGITS_AT_ONCE", 20 * 128)
    monkeypatch.setattr(attention, "QUERIES_AT_ONCE", 7)
    all_close(Packed(decoder, [(weights, tokens)]), whole)


@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_activations_computed_twice_are_the_same_to_the_bit(blocks: int) -> None:
    model = tiny("llama")
    decoder, weights, tokens = read_decoder(model), adapter(model, 4, seed=2), rows(40, 9)
    kept = Packed(decoder, [(weights, tokens)])
    again = Packed(decoder, [(weights, tokens)], bytes_to_keep=blocks * decoder.bytes_per_block(49))
    assert all(
        torch.equal(kept.gradients[0][name], gradient) for name, gradient in again.gradients[0].items()
    )


def test_forward_alone_gives_the_same_logprobs_and_no_gradient() -> None:
    model = tiny("llama")
    decoder, weights, tokens = read_decoder(model), adapter(model, 4, seed=2), rows(40, 9)
    forward, both = (Packed(decoder, [(weights, tokens)], backward=way) for way in (False, True))
    assert not forward.gradients[0]
    assert all(torch.equal(both.logprobs[0][row], logprobs) for row, logprobs in forward.logprobs[0].items())


@pytest.mark.parametrize("family", ["smollm", "qwen3"])
@pytest.mark.parametrize("logits", [2**25, 48 * 128])
def test_runs_in_one_pass_are_alone_to_the_bit(
    family: str, logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever their ranks, layers and lengths, down to a single token."""
    monkeypatch.setattr(head, "LOGITS_AT_ONCE", logits)
    model = tiny(family)
    decoder = read_decoder(model)
    runs = [
        (adapter(model, 4, seed=2), [*rows(70, 5, 41, seed=1), *rows(30, 45, shared=25, seed=7)]),
        (adapter(model, 1, seed=3), rows(1, seed=2)),
        (adapter(model, 16, seed=4, layers=("self_attn",)), rows(33, 2, seed=3)),
        (adapter(model, 2, seed=5, layers=("lm_head",)), rows(100, seed=4)),
        (adapter(model, 7, seed=6, layers=("mlp", "lm_head")), rows(17, 4, 90, seed=5)),
    ]
    alone = [Packed(decoder, [run]) for run in runs]
    for order in itertools.islice(itertools.permutations(range(len(runs))), 0, None, 23):
        together = Packed(decoder, [runs[at] for at in order])
        for place, at in enumerate(order):
            for row, logprobs in alone[at].logprobs[0].items():
                assert torch.equal(together.logprobs[place][row], logprobs)
            for name, gradient in alone[at].gradients[0].items():
                assert torch.equal(together.gradients[place][name], gradient), name


def test_identical_rows_are_computed_once() -> None:
    model = tiny("llama")
    decoder, weights, tokens = read_decoder(model), adapter(model, 4, seed=2), rows(20)
    twice = Packed(decoder, [(weights, [tokens[0], tokens[0]])])
    assert twice.slots == 20
    torch.testing.assert_close(twice.logprobs[0][0], twice.logprobs[0][1])
    _, gradients = reference(model, weights, [tokens[0], tokens[0]])
    for name, gradient in gradients.items():
        assert distance(twice.gradients[0][name], gradient) < 1e-4, name


def test_the_kernel_here_is_exact_and_steady() -> None:
    kernel = best_kernel(torch.device("cpu"), torch.float32)
    generator = torch.Generator().manual_seed(3)
    for inputs, outputs in ((576, 960), (64, 48), (1536, 576), (100, 7)):
        x, w = (torch.randn(n, inputs, generator=generator) for n in (300, outputs))
        whole = kernel.linear(x, w)
        assert float((whole.double() - x.double() @ w.double().t()).abs().max()) < 1e-5 * inputs**0.5
        for count in (MIN_ROWS, 33, 299):
            assert torch.equal(kernel.linear(x[-count:], w), whole[-count:])


def test_prefixes_are_shared_where_that_saves_most() -> None:
    system = rows(30)[0]
    one, other = (np.concatenate([system, row]) for row in rows(40, 50, seed=1))
    tokens = [np.append(one, extra) for extra in range(5)] + [np.append(other, extra) for extra in range(3)]
    groups = share_prefixes(tokens[::-1])
    assert sorted((group.shared, len(group.rows)) for group in groups) == [(70, 5), (80, 3)]
    assert sorted(row for group in groups for row in group.rows) == list(range(8))
    assert share_prefixes(rows(15, 15, shared=10)) == share_prefixes(rows(3, 4)), "too short to be worth it"


def test_portions_keep_to_the_budget_and_lose_nothing() -> None:
    tokens = [*rows(70, 60, 65, 90, 62, shared=50), *rows(10, 200, 30, seed=4)]
    lengths = [len(row) for row in tokens]
    for budget in (1, 60, 100, 128, 1000):
        portions = micro_batches(tokens, budget)
        assert sorted(row for groups in portions for group in groups for row in group.rows) == list(range(8))
        for groups in portions:
            size = sum(group.slots(lengths) for group in groups)
            assert size <= budget or sum(len(group.rows) for group in groups) == 1


def test_other_models_are_told_apart() -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
             "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8}  # fmt: skip
    assert "gemma2" in str(why_not_fast(Gemma2ForCausalLM(Gemma2Config(**sizes, pad_token_id=0))))
    assert "gelu" in str(why_not_fast(LlamaForCausalLM(LlamaConfig(**sizes, hidden_act="gelu"))))
