"""What survives: the catalogue and the journal (SQL), and the blobs (files)."""

from .blobs import Blobs
from .database import Database
from .lock import DataDirLock

__all__ = ["Blobs", "DataDirLock", "Database"]
