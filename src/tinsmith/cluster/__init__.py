"""The same engine, placed on a Ray cluster."""

from .ray_engine import RayEngine

__all__ = ["RayEngine"]
