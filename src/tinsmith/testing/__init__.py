"""For tests: a real service in a process of its own, and a pytest plugin that starts one."""

from .process import ServiceProcess

__all__ = ["ServiceProcess"]
