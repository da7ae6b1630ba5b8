"""The base models: which there are, where they lie, and how they get there."""

from .cache import ModelUnavailable, default_cache_dir
from .catalogue import Alias, Catalogue, ModelEntry, parse_alias

__all__ = ["Alias", "Catalogue", "ModelEntry", "ModelUnavailable", "default_cache_dir", "parse_alias"]
