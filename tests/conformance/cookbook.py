"""tinker-cookbook's recipes, unmodified, against `tinsmith serve` with the embedded model, from local data.

Run as a script (a few minutes):  python tests/conformance/cookbook.py [RECIPE ...]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from official import EXTRA, make_environment

from tinsmith.engine.models import Catalogue
from tinsmith.testing import ServiceProcess

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
NAME = "Qwen/Qwen3-4B-Instruct-2507"  # a name the cookbook knows; the service knows it as an alias
RENDERER = "qwen3_instruct"  # its chat format is that of our model too
VERSION = "0.6.1"
# tinker-cookbook asks for a newer tml-renderers than there is, so both come without their dependencies.
PACKAGES = (f"tinker-cookbook=={VERSION}", "tml-renderers", "tinker==0.38.0", *EXTRA)
LIBRARIES = (
    "blobfile",
    "chz",
    "cloudpickle",
    "datasets",
    "pyrage",
    "tiktoken",
    "termcolor",
    "pillow",
    "aiohttp",
)
MATHEMATICS = ("pylatexenc", "math-verify", "scipy")


@dataclass(frozen=True)
class Recipe:
    """One recipe's module and what it is told."""

    module: str
    arguments: tuple[str, ...]
    moves: str  # a metric that changes from step to step where the model is really trained


# Answers long enough to end, or not; where all rewards were equal nothing would be trained.
_RL = (
    "env=arithmetic",
    "groups_per_batch=4",
    "group_size=8",
    "max_tokens=12",
    "max_steps=3",
    "learning_rate=1e-4",
    "eval_every=0",
)
RECIPES = {
    "chat_sl": Recipe(
        "tinker_cookbook.recipes.chat_sl.train",
        ("dataset=conversations.jsonl", "batch_size=4", "max_steps=3", "eval_every=0", "max_length=256"),
        "train_mean_nll",
    ),
    **{
        f"math_rl-{loss}": Recipe(
            "tinker_cookbook.recipes.math_rl.train", (*_RL, f"loss_fn={loss}"), "unclipped_grad_l2:mean"
        )
        for loss in ("importance_sampling", "ppo", "cispo")
    },
    "dpo": Recipe(
        "tinker_cookbook.recipes.preference.dpo.train",
        ("dataset=hhh", "batch_size=2", "max_steps=2", "max_length=256"),
        "dpo_loss",
    ),
}


def prepare(folder: Path) -> None:
    """Data sets and the tokenizer, as local folders of the names that would be looked up on a hub."""
    tokenizer = folder / NAME
    tokenizer.parent.mkdir(parents=True)
    tokenizer.symlink_to(Catalogue().resolve(MODEL).folder)
    pairs = [(f"What is {n} plus {n}?", f"It is {2 * n}.", "I do not know.") for n in range(1, 17)]
    conversations = [
        {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": good}]}
        for asked, good, _ in pairs
    ]
    _write(folder / "conversations.jsonl", conversations)
    comparisons = [
        {
            "chosen": f"\n\nHuman: {asked}\n\nAssistant: {good}",
            "rejected": f"\n\nHuman: {asked}\n\nAssistant: {bad}",
        }
        for asked, good, bad in pairs
    ]
    for split in ("train", "test"):
        _write(folder / "Anthropic" / "hh-rlhf" / f"{split}.jsonl", comparisons)


def _write(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(recipe: Recipe, name: str, folder: Path, url: str) -> list[dict[str, float]]:
    """Run a recipe to its end; the lines of its log."""
    python = make_environment(f"cookbook-{VERSION}", PACKAGES, LIBRARIES + MATHEMATICS)
    log = folder / "logs" / name
    command = [str(python), "-m", recipe.module, f"model_name={NAME}", f"renderer_name={RENDERER}"]
    command += [f"log_path={log}", f"base_url={url}", *recipe.arguments]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TINKER_")}
    environment |= {"TINKER_API_KEY": "tml-test", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        raise RuntimeError(f"{name} failed:\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}")
    return [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]


def main(names: list[str]) -> None:
    """Run the named recipes, or all of them."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        prepare(folder)
        options = ["--alias", f"{NAME}={MODEL}"]
        with ServiceProcess(folder / "data", models=[MODEL], options=options) as service:
            for name in names or RECIPES:
                rows = run(RECIPES[name], name, folder, service.url)
                metric = RECIPES[name].moves
                values = [row[metric] for row in rows if metric in row]
                if not values or max(values) - min(values) < 1e-3:
                    raise RuntimeError(f"{name} trained nothing: {metric} is {values} in {rows}")
                print(f"{name}: {metric} {values}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
