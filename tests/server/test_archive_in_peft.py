"""What the service exports loads in PEFT and, merged, computes the service's own log-probabilities."""

from __future__ import annotations

import asyncio
import io
import tarfile
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from server_support import TOKENS, Api, Serve, batch

from tinsmith.engine.models import Catalogue


async def _train_and_export(api: Api, model: str, folder: Path, train_unembed: bool) -> list[float]:
    """Three steps, an archive in ``folder``, and the log-probabilities the service computes then."""
    config = {"rank": 4, "seed": 1, "train_unembed": train_unembed}
    created = await api.do(
        "create_model",
        session_id=await api.session(),
        model_seq_id=0,
        base_model=model,
        lora_config=config,
    )
    run = created["model_id"]
    for seq in (1, 3, 5):
        await api.loss(run, seq)
        await api.do("optim_step", adam_params={"learning_rate": 0.02}, model_id=run, seq_id=seq + 1)
    forward = await api.do("forward", **batch(run, 7, "forward"))
    path = (await api.do("save_weights", model_id=run, path="trained", seq_id=8))["path"]
    address = path.removeprefix("tinker://").replace("/", "/checkpoints/", 1)
    redirect = await api.http.get(f"training_runs/{address}/archive")
    content = (await api.http.get(redirect.headers["location"])).content
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        archive.extractall(folder, filter="data")
    return forward["loss_fn_outputs"][0]["logprobs"]["data"]


def _logprobs_in_peft(model: str, adapter: Path) -> tuple[list[float], list[float], list[float]]:
    """Log-probabilities of the bare model, of PEFT's with the adapter beside it, and of the merged one."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(Catalogue().resolve(model).folder, dtype=torch.float32)
    bare = _logprobs(base)
    _untie(base)
    with warnings.catch_warnings():  # PEFT's advice on tied embeddings
        warnings.simplefilter("ignore")
        beside = PeftModel.from_pretrained(base, adapter)
        unmerged = _logprobs(beside)
        return bare, unmerged, _logprobs(beside.merge_and_unload(safe_merge=True))


def _untie(model: Any) -> None:
    """An adapter on the unembedding changes what comes out; merged into a matrix that is also the embedding
    it would change what goes in."""
    if model.config.tie_word_embeddings:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
        model.config.tie_word_embeddings = False


def _logprobs(model: torch.nn.Module) -> list[float]:
    with torch.no_grad():
        logits = model(torch.tensor([TOKENS[:-1]])).logits[0]
    picked = torch.log_softmax(logits, -1)[torch.arange(len(TOKENS) - 1), torch.tensor(TOKENS[1:])]
    return picked.tolist()


@pytest.mark.parametrize("train_unembed", [True, False])
@pytest.mark.parametrize("model", ["tiny-llama", "tiny-qwen3"])
def test_the_merged_archive_computes_what_the_service_does(
    serve: Serve, tmp_path: Path, model: str, train_unembed: bool
) -> None:
    async def main() -> list[float]:
        async with serve(offered=(model,)) as api:
            return await _train_and_export(api, model, tmp_path / "adapter", train_unembed)

    expected = asyncio.run(main())
    bare, unmerged, merged = _logprobs_in_peft(model, tmp_path / "adapter")
    assert unmerged == pytest.approx(expected, abs=1e-4)
    assert merged == pytest.approx(expected, abs=1e-4)
    assert max(abs(a - b) for a, b in zip(bare, expected, strict=True)) > 0.1
