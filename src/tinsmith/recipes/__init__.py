"""Loops people start from, written only against the public client."""
