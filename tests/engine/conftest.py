"""Two real, tiny models: a Llama with its own output matrix, a Qwen3 with tied embeddings."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from tinsmith.engine.interface import BaseModel
from tinsmith.engine.models import Catalogue

sys.path.insert(0, str(Path(__file__).parent))  # for engine_support, in every import mode of pytest
torch.set_num_threads(1)  # tests run side by side


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, BaseModel]:
    catalogue = Catalogue(tmp_path_factory.mktemp("models"))
    found = {name: catalogue.resolve(name).folder for name in ("tiny-llama", "tiny-qwen3")}
    # A short context, so that tests can reach its end.
    models = {name: BaseModel(name, folder, name, 512, 256) for name, folder in found.items()}
    return {**models, "alias": BaseModel("alias", models["tiny-llama"].folder, "tiny-llama", 512, 256)}


@pytest.fixture(params=["tiny-llama", "tiny-qwen3"])
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)
