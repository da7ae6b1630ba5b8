"""Downloads a model from the Hugging Face hub into the cache: weights and tokenizer only, never pickles."""

import re
import shutil
from pathlib import Path

from .cache import ModelUnavailable, OnProgress
from .folder import check_folder

# No .bin, .pt or .py: files that run code when they are read are not fetched at all.
WANTED = [
    *("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json"),
    *("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json"),
    *("LICENSE*", "NOTICE*", "README.md"),
]
UNWANTED = ["*/*", "consolidated*.safetensors"]  # the same weights in other layouts
REPOSITORY = re.compile(r"[A-Za-z0-9](?:[\w.-]*\w)?/[A-Za-z0-9](?:[\w.-]*\w)?", re.ASCII)


def is_repository(name: str) -> bool:
    """Whether `name` has the hub's form `org/name` (which leaves no room for `..` or a path)."""
    return bool(REPOSITORY.fullmatch(name)) and "--" not in name and ".." not in name


def folder_name(name: str) -> str:
    """The folder of a hub model; the hub allows no `--` in names, so it can be read back."""
    return name.replace("/", "--")


def repository_name(folder: str) -> str | None:
    """The hub name that `folder_name` made a folder name of, or None."""
    name = folder.replace("--", "/")
    return name if is_repository(name) else None


def download_snapshot(name: str, folder: Path, on_progress: OnProgress) -> None:
    """Fill `folder` with the model; raise `ModelUnavailable` if the hub has none or cannot be reached."""
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    on_progress(f"downloading {name} from the Hugging Face hub")
    try:
        snapshot_download(name, local_dir=folder, allow_patterns=WANTED, ignore_patterns=UNWANTED)
    except GatedRepoError as error:
        raise ModelUnavailable(
            f"{name} is gated: accept its licence on the hub, then log in with `hf auth login`. {error}"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelUnavailable(
            f"the hub has no model {name} that you may read: check the spelling, "
            f"or log in with `hf auth login`. {error}"
        ) from error
    except (HfHubHTTPError, httpx.HTTPError, OSError) as error:
        raise ModelUnavailable(
            f"{name} could not be downloaded from the hub. Check the network and try again, "
            "or copy the model's folder here by other means and give its path. "
            f"The hub client said:\n{error}"
        ) from error
    shutil.rmtree(folder / ".cache")  # the hub client's own bookkeeping
    check_folder(folder)
    on_progress(f"{name} is ready")
