"""Writes the two kinds of file a model folder is made of: JSON documents and safetensors."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def write_json(path: Path, value: object) -> None:
    """Write `value` as the model hub's files are written: two spaces, real characters."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False), encoding="utf-8", newline="\n")


def write_weights(folder: Path, tensors: "Mapping[str, NDArray[np.float32]]") -> None:
    """Write model.safetensors beside config.json."""
    from safetensors.numpy import save_file

    target = folder / "model.safetensors"
    save_file(dict(tensors), target, metadata={"format": "pt"})
    # save_file makes a file for its owner alone; a cache may be shared.
    shutil.copymode(folder / "config.json", target)
