"""A sampler as text: what another process needs to sample from it. Never a key, never a header."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
from dataclasses import asdict, dataclass, fields
from weakref import WeakValueDictionary

from .config import ClientConfig
from .errors import TinkerError
from .session import Session


@dataclass(frozen=True, slots=True)
class SamplerHandle:
    """Where a sampler is and what is known of it."""

    base_url: str
    session_id: str
    sampling_session_id: str
    base_model: str | None = None
    model_path: str | None = None
    tokenizer: str | None = None
    record_stability_info: bool = False

    @classmethod
    def of(
        cls, session: Session, session_id: str, sampling_session_id: str, **known: object
    ) -> SamplerHandle:
        """The handle of a sampler; an embedded service's cannot leave its process."""
        base_url = session.config.base_url
        if base_url is None:
            raise TinkerError(
                "a sampler of the embedded service lives in this process only; run `tinsmith serve` and set "
                "TINKER_BASE_URL to share one between processes"
            )
        return cls(base_url, session_id, sampling_session_id, **known)  # type: ignore[arg-type]

    def encode(self) -> str:
        """As one word of letters, digits, '-' and '_'."""
        return base64.urlsafe_b64encode(json.dumps(asdict(self), separators=(",", ":")).encode()).decode()

    @classmethod
    def decode(cls, handle: str) -> SamplerHandle:
        """The way back, or an error that says what is wrong."""
        try:
            state = json.loads(base64.urlsafe_b64decode(handle))
            return cls(**{field.name: state[field.name] for field in fields(cls)})
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"handle: {handle[:40]!r} is not what get_sampler_handle() gave out") from error

    def session(self, api_key: str | None) -> Session:
        """This process's share in the sampler's session: one, however many samplers of it are here."""
        config = ClientConfig.resolve(base_url=self.base_url, api_key=api_key)
        secret = hashlib.sha256((config.api_key or "").encode()).digest()
        key = (os.getpid(), self.base_url, secret, self.session_id)
        with _lock:
            session = _shared.get(key)
            if session is None:
                session = _shared[key] = Session(config, joins=self.session_id)
            return session


_lock = threading.Lock()
_shared: WeakValueDictionary[tuple[int, str, bytes, str], Session] = WeakValueDictionary()
