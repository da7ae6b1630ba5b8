"""The engine in a process of its own: it may die without taking the service with it."""

from .engine import ChildEngine

__all__ = ["ChildEngine"]
