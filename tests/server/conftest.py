"""The fixture `serve`; all else is in `server_support`, which tests import by its own name."""

from server_support import serve

__all__ = ["serve"]
