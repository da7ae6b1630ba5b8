"""The service over HTTP: thin routes, authentication, errors. Nothing is decided here."""

from .app import create_app

__all__ = ["create_app"]
