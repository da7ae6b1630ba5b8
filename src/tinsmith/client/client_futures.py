"""Futures of clients that can be used like the clients: for code that never waited for one."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

from .futures import APIFuture
from .sampling_client import SamplingClient
from .training_client import TrainingClient

_C = TypeVar("_C")


class ClientFuture(APIFuture[_C]):
    """A client on its way. Using it as the client waits for it first."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Whatever a client class offers is looked up on the finished client instead."""
        super().__init_subclass__(**kwargs)
        for base in cls.__mro__:
            if base in (TrainingClient, SamplingClient):
                for name, member in vars(base).items():
                    if not name.startswith("_") and not isinstance(member, staticmethod):
                        setattr(cls, name, _forward(base, name))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.result(), name)


def _forward(base: type, name: str) -> Any:
    if inspect.iscoroutinefunction(inspect.getattr_static(base, name)):

        async def later(self: APIFuture[Any], *args: Any, **kwargs: Any) -> Any:
            return await getattr(await self, name)(*args, **kwargs)

        later.__name__ = name
        return later
    return property(lambda self: getattr(self.result(), name))


class BackcompatTrainingClientFuture(ClientFuture[TrainingClient], TrainingClient):
    """A `TrainingClient` on its way: wait for it with ``result()`` or ``await``, or just use it.

    >>> made = service.create_lora_training_client("tiny-llama", rank=2)
    >>> made.get_info().model_name == made.result().get_info().model_name
    True
    """

    def __init__(self) -> None:
        APIFuture.__init__(self)


class BackcompatSamplingClientFuture(ClientFuture[SamplingClient], SamplingClient):
    """A `SamplingClient` on its way: wait for it with ``result()`` or ``await``, or just use it.

    >>> made = service.create_sampling_client(base_model="tiny-llama")
    >>> made.sample(PROMPT, 1, SamplingParams(max_tokens=3, stop=[])).result().sequences[0].stop_reason
    'length'
    """

    def __init__(self) -> None:
        APIFuture.__init__(self)
