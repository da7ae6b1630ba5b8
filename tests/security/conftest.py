"""One service for all attacks of a worker: whatever they do to it, it must still be there for the next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from security_support import Live, Tenant, live, make_keys


@dataclass(frozen=True)
class Scene:
    """The service, its tenants, and a run of the attacker's own."""

    service: Live
    alice: Tenant
    mallory: Tenant
    session: str  # mallory's
    sampler: str
    expected: Any  # what training gives when nobody attacks


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A service with two tenants on a real port."""
    data = tmp_path_factory.mktemp("attacked") / "data"
    keys = make_keys(data, "alice", "mallory")
    with live(data) as service:
        alice, mallory = (service.tenant(key) for key in keys)
        session = mallory.session()
        expected = alice.train(alice.run(alice.session()), 1)
        yield Scene(service, alice, mallory, session, mallory.sampler(session), expected)
