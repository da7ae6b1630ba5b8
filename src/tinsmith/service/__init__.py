"""What a Tinker is: sessions, runs, operations, futures, samplers, checkpoints. No HTTP, no tensors."""

from .service import Service
from .settings import Settings

__all__ = ["Service", "Settings"]
