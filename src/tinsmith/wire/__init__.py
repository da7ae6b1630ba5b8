"""Nouns to bytes and back: JSON, protobuf, compression. Pure functions."""
