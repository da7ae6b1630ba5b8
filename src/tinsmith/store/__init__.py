"""What survives: the catalogue and the journal (SQL), and the blobs (files)."""

from .blobs import Blobs
from .database import DATABASE_FILE, Database
from .lock import DataDirLock

__all__ = ["DATABASE_FILE", "Blobs", "DataDirLock", "Database"]
