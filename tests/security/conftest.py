"""One service for all attacks of a worker: whatever they do to it, it must still be there for the next."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from security_support import Scene, live, make_keys


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
