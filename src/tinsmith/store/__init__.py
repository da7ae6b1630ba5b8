"""What survives: the catalogue and the journal (SQL), and the blobs (files)."""

from .blobs import Blobs
from .database import DATABASE_FILE, Database
from .lock import DataDirLock, DataDirUnusable
from .packing import pack, unpack
from .seals import Damaged, check, seal
from .space import Space

__all__ = [
    "DATABASE_FILE",
    "Blobs",
    "Damaged",
    "DataDirLock",
    "DataDirUnusable",
    "Database",
    "Space",
    "check",
    "pack",
    "seal",
    "unpack",
]
