"""`tinsmith demo`: fine-tune a small language model here and now, and see the difference."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import tinsmith
from tinsmith.recipes import chat, demo, sft
from tinsmith.store import DataDirUnusable

from .fetching import catalogue

BASE_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
_COUNT = click.IntRange(min=1)


@click.command("demo")
@click.option(
    "--model", default=BASE_MODEL, show_default=True, help="A base model: a name or a local folder."
)
@click.option("--rank", type=_COUNT, default=16, show_default=True, help="Rank of the LoRA adapter.")
@click.option("--epochs", type=_COUNT, default=4, show_default=True, help="Times through the data.")
@click.option("--batch-size", type=_COUNT, default=10, show_default=True, help="Examples per optimizer step.")
@click.option(
    "--learning-rate",
    type=click.FloatRange(min=0),
    default=2e-3,
    show_default=True,
    help="At the first step; falls to zero.",
)
def command(model: str, rank: int, epochs: int, batch_size: int, learning_rate: float) -> None:
    """Fine-tune a small language model on this machine: no account, no GPU, a few minutes.

    Sixty questions answered in the manner of an old tinsmith; then three questions he was never asked,
    answered before and after.
    """
    console = Console(highlight=False)
    data = demo.examples()
    console.print(
        f"[bold]Tinsmith[/bold]: LoRA (rank {rank}) on {model}\n{len(data)} examples, {epochs} epochs\n"
    )
    with catalogue(lambda message: console.print(message, soft_wrap=True)) as models:
        models.resolve(model)
    try:
        _run(console, data, model, rank, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate)
    except (tinsmith.TinkerError, DataDirUnusable) as error:
        raise click.ClickException(str(error)) from error


def _run(console: Console, data: Sequence[tuple[str, str]], model: str, rank: int, **how: Any) -> None:
    with tinsmith.ServiceClient(base_url=tinsmith.EMBEDDED) as service:
        with console.status("getting the model ready"):
            training = service.create_lora_training_client(base_model=model, rank=rank, seed=0).result()
            tokenizer = training.get_tokenizer()
        before = _answers(
            console, tokenizer, service.create_sampling_client(base_model=model).result(), "before"
        )
        batches = [chat.datum(tokenizer, question, answer) for question, answer in data]
        _train(console, training, batches, **how)
        after = _answers(
            console, tokenizer, training.save_weights_and_get_sampling_client().result(), "after"
        )
        path = training.save_state("demo").result().path
    console.print(_comparison(before, after))
    console.print(_what_next(path), soft_wrap=True)  # a path is there to be copied


def _train(
    console: Console, training: tinsmith.TrainingClient, data: Sequence[tinsmith.Datum], **how: Any
) -> None:
    steps = how["epochs"] * -(-len(data) // how["batch_size"])
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss [bold]{task.fields[loss]}[/bold]  {task.fields[speed]} tokens/s"),
        TimeElapsedColumn(),
    )
    tokens, started = 0, time.monotonic()
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("training", total=steps, loss="   -", speed="  -")
        for step in sft.train(training, data, **how):
            tokens += step.tokens
            speed = tokens / (time.monotonic() - started)
            progress.update(bar, completed=step.number, loss=f"{step.loss:.3f}", speed=f"{speed:.0f}")
    console.print()


def _answers(console: Console, tokenizer: Any, sampler: tinsmith.SamplingClient, when: str) -> list[str]:
    """The held-out questions, answered greedily, all at the same time."""
    params = tinsmith.SamplingParams(max_tokens=60, temperature=0.0)
    with console.status(f"asking the model, {when} training"):
        futures = []
        for question in demo.HELD_OUT:
            prompt = chat.prompt_tokens(tokenizer, [{"role": "user", "content": question}])
            futures.append(sampler.sample(tinsmith.ModelInput.from_ints(prompt), 1, params))
        sequences = [future.result().sequences[0] for future in futures]
    return [_text(tokenizer, sequence) for sequence in sequences]


def _text(tokenizer: Any, sequence: tinsmith.SampledSequence) -> str:
    text: str = tokenizer.decode(sequence.tokens, skip_special_tokens=True).strip()
    return text if sequence.stop_reason == "stop" else f"{text} …"


def _comparison(before: Sequence[str], after: Sequence[str]) -> Table:
    table = Table(
        show_lines=True, title="Questions it was never trained on", title_justify="left", expand=True
    )
    table.add_column("asked", ratio=2)
    table.add_column("before", ratio=4)
    table.add_column("after", ratio=4, style="bold")
    for row in zip(demo.HELD_OUT, before, after, strict=True):
        table.add_row(*row)
    return table


def _what_next(path: str) -> str:
    return f"""
Saved as [bold]{path}[/bold]

Go on from here:
  [bold]service.create_training_client_from_state("{path}")[/bold]
      in your own loop; README.md has one in fifteen lines
  [bold]tinsmith serve[/bold]
      the same service on a port, for the tinker SDK and for other machines
"""
