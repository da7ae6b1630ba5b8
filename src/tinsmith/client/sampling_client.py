"""SamplingClient: samples of one immutable set of weights."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from tinsmith.types import (
    CreateSamplingSessionRequest,
    ModelInput,
    SampleJob,
    SampleResponse,
    SamplingParams,
    TensorData,
)
from tinsmith.types.checkpoint import ParsedCheckpointTinkerPath

from .errors import TinkerError
from .futures import APIFuture, spawn, spawn_into
from .results import pending_of
from .retry import RetryConfig
from .sampler import Sampler
from .sampler_handle import SamplerHandle
from .samples import check
from .session import Session
from .stream import TokenStream, produce
from .telemetry import Telemetry
from .tokenized import Tokenized
from .tokenizer import load_tokenizer, tokenizer_id

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from .api import Api
    from .client_futures import BackcompatSamplingClientFuture

_log = logging.getLogger("tinsmith")


class SamplingClient(Tokenized):
    """Samples from a base model or from saved weights. Made by a `ServiceClient` or a `TrainingClient`.

    ::

        prompt = tinsmith.ModelInput.from_ints(tokenizer.encode("Once upon a time"))
        response = sampling_client.sample(prompt, 2, tinsmith.SamplingParams(max_tokens=20)).result()
        for sequence in response.sequences:
            print(tokenizer.decode(sequence.tokens))

    Thousands of samples may be asked for at once; when the service asks for a pause, all clients of
    that service wait together, and nothing is lost.

    It can be pickled into worker processes. Each copy there samples under numbers of its own; the API key
    is not in the pickle but comes from the worker's environment (TINKER_API_KEY). Where that will not do,
    pass `get_sampler_handle` and use `from_sampler_handle` with a key.

    >>> response = sampler.sample(PROMPT, 1, SamplingParams(max_tokens=4, seed=1, stop=[])).result()
    >>> len(response.sequences[0].tokens)
    4
    """

    def __init__(
        self,
        holder: Session,
        *,
        sampling_session_id: str,
        base_model: str | None = None,
        model_path: str | None = None,
        tokenizer: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
        shadow: bool = False,
    ) -> None:
        self._session = holder
        self._id = sampling_session_id
        self._base_model = base_model
        self._model_path = model_path
        self._tokenizer = tokenizer
        self._retry = retry_config or RetryConfig()
        self._stability = record_stability_info
        self._sampler = Sampler(
            holder,
            sampling_session_id,
            self._retry,
            record_stability_info=record_stability_info,
            joins=shadow,
        )

    @staticmethod
    def create(
        holder: Session,
        *,
        model_path: str | None = None,
        base_model: str | None = None,
        sampling_session_id: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
    ) -> BackcompatSamplingClientFuture:
        """A sampler in the session of another client (its ``holder``), or one of that session by its id."""
        if sampling_session_id is None:
            return open_sampler(holder, model_path, base_model, retry_config, record_stability_info)
        client = SamplingClient(
            holder,
            sampling_session_id=sampling_session_id,
            base_model=base_model if model_path is None else None,
            model_path=model_path,
            retry_config=retry_config,
            record_stability_info=record_stability_info,
            shadow=True,
        )
        return _as_future(client)

    @property
    def holder(self) -> Session:
        """The session it samples in."""
        return self._session

    @property
    def sampling_session_id(self) -> str:
        """The sampler's id."""
        return self._id

    # ---- samples --------------------------------------------------------------------------------

    def sample(
        self,
        prompt: ModelInput,
        num_samples: int,
        sampling_params: SamplingParams,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
        topk_sample_logprobs: int = 0,
        target_prompt_logprobs: TensorData | None = None,
        prompt_alt_tokens_k: int = 0,
        prompt_logprobs_last_n: int | None = None,
    ) -> APIFuture[SampleResponse]:
        """Continuations of a prompt, and on demand the log-probabilities of the prompt itself."""
        self._session.check()
        job = SampleJob(
            prompt=prompt,
            params=sampling_params,
            num_samples=num_samples,
            prompt_logprobs=include_prompt_logprobs,
            topk_prompt_logprobs=topk_prompt_logprobs,
            topk_sample_logprobs=topk_sample_logprobs,
            target_prompt_logprobs=target_prompt_logprobs,
            prompt_alt_tokens_k=prompt_alt_tokens_k,
            prompt_logprobs_last_n=prompt_logprobs_last_n,
        )
        check(job)
        return spawn(self._sampler.sample(job, self._sampler.number()), "sample")

    async def sample_async(
        self,
        prompt: ModelInput,
        num_samples: int,
        sampling_params: SamplingParams,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
        topk_sample_logprobs: int = 0,
        target_prompt_logprobs: TensorData | None = None,
        prompt_alt_tokens_k: int = 0,
        prompt_logprobs_last_n: int | None = None,
    ) -> SampleResponse:
        """`sample`, awaited."""
        return await self.sample(
            prompt,
            num_samples,
            sampling_params,
            include_prompt_logprobs,
            topk_prompt_logprobs,
            topk_sample_logprobs,
            target_prompt_logprobs,
            prompt_alt_tokens_k,
            prompt_logprobs_last_n,
        )

    def compute_logprobs(
        self, prompt: ModelInput, prompt_logprobs_last_n: int | None = None
    ) -> APIFuture[list[float | None]]:
        """The log-probability of each prompt token given those before it; None for the first."""
        params = SamplingParams(max_tokens=1)
        response = self.sample(prompt, 1, params, True, prompt_logprobs_last_n=prompt_logprobs_last_n)
        return spawn(_prompt_logprobs(response), "compute_logprobs")

    async def compute_logprobs_async(
        self, prompt: ModelInput, prompt_logprobs_last_n: int | None = None
    ) -> list[float | None]:
        """`compute_logprobs`, awaited."""
        return await self.compute_logprobs(prompt, prompt_logprobs_last_n)

    def stream(
        self, prompt: ModelInput, sampling_params: SamplingParams, num_samples: int = 1
    ) -> TokenStream:
        """The tokens of a sample, one by one, as the service decodes them::

            with sampling_client.stream(prompt, params) as stream:
                for token in stream:  # or: async for
                    print(token.token_id, token.logprob)

        With several samples their tokens are interleaved; ``token.sequence`` says whose each is. A stream is
        read once; closing it ends the sampling. Streams are an extension of Tinsmith: other services refuse
        with StreamingUnsupportedError, at the first token.
        """
        self._session.check()
        job = SampleJob(prompt=prompt, params=sampling_params, num_samples=num_samples)
        check(job)
        return TokenStream(produce(self._sampler, job, self._sampler.number()))

    # ---- from process to process ----------------------------------------------------------------

    def get_sampler_handle(self) -> str:
        """This sampler as a word that another process can make a client from. It has no key in it."""
        return self._handle().encode()

    @staticmethod
    def from_sampler_handle(handle: str, *, api_key: str | None = None) -> SamplingClient:
        """A client of the sampler behind a handle; each has sample numbers of its own.

        The key is ``api_key``, else this process's TINKER_API_KEY.
        """
        return _from_handle(SamplerHandle.decode(handle), api_key, None)

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_handle, (self._handle(), None, self._retry)

    def _handle(self) -> SamplerHandle:
        return SamplerHandle.of(
            self._session,
            self._session.get_session_id(),
            self._id,
            base_model=self._base_model,
            model_path=self._model_path,
            tokenizer=self._tokenizer,
            record_stability_info=self._stability,
        )

    # ---- what is sampled ------------------------------------------------------------------------

    def get_base_model(self) -> str:
        """The base model's name."""
        return spawn(self._learn_base_model(), "get_base_model").result()

    async def get_base_model_async(self) -> str:
        """The base model's name."""
        return await spawn(self._learn_base_model(), "get_base_model")

    def get_tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer, loaded with transformers (blocks while it loads)."""
        name = spawn(self._learn_tokenizer(), "get_tokenizer").result()
        return load_tokenizer(name)

    async def _learn_base_model(self) -> str:
        if self._base_model is None:
            self._session.check()
            sampler = await (await self._api()).sampler(self._id)
            self._base_model, self._tokenizer = sampler.base_model, self._tokenizer or sampler.tokenizer_id
        return self._base_model

    async def _learn_tokenizer(self) -> str:
        if self._tokenizer is None:
            self._session.check()
            try:
                self._tokenizer = await self._named_tokenizer()
            except TinkerError as error:
                _log.debug("the service does not name the tokenizer of %s: %s", self._id, error)
        named = self._tokenizer
        return tokenizer_id(named, self._base_model if named else await self._learn_base_model())

    async def _api(self) -> Api:
        return (await self._session.live()).api

    async def _named_tokenizer(self) -> str | None:
        """What the service says: of the sampler, or of the run its weights come from."""
        api = await self._api()
        sampler = await api.sampler(self._id)
        if sampler.tokenizer_id is not None or self._model_path is None:
            return sampler.tokenizer_id
        run = ParsedCheckpointTinkerPath.from_tinker_path(self._model_path).training_run_id
        return (await api.get_info(run)).model_data.tokenizer_id

    # ---- what it tells --------------------------------------------------------------------------

    def on_queue_state_change(self, queue_state: str, queue_state_reason: str | None = None) -> None:
        """Note that the service keeps samples waiting; told in the log at most once a minute."""
        state = {"queue_state": str(queue_state).lower(), "queue_state_reason": queue_state_reason}
        self._sampler.watch.saw(pending_of(state))

    def get_telemetry(self) -> Telemetry:
        """The session's telemetry, for events of your own."""
        return self._session.telemetry


def _from_handle(handle: SamplerHandle, api_key: str | None, retry: RetryConfig | None) -> SamplingClient:
    return SamplingClient(
        handle.session(api_key),
        sampling_session_id=handle.sampling_session_id,
        base_model=handle.base_model,
        model_path=handle.model_path,
        tokenizer=handle.tokenizer,
        retry_config=retry,
        record_stability_info=handle.record_stability_info,
        shadow=True,
    )


def open_sampler(
    session: Session,
    model_path: str | None,
    base_model: str | None,
    retry_config: RetryConfig | None,
    record_stability_info: bool,
) -> BackcompatSamplingClientFuture:
    """Start making a sampler of saved weights or of a base model."""
    from .client_futures import BackcompatSamplingClientFuture

    session.check()
    if model_path is None and base_model is None:
        raise ValueError("model_path: give model_path (tinker://...) or base_model")
    if model_path is not None:
        ParsedCheckpointTinkerPath.from_tinker_path(model_path)
    seq_id = next(session.sampling_seq_ids)

    async def work() -> SamplingClient:
        live = await session.live()
        reply = await live.api.create_sampling_session(
            CreateSamplingSessionRequest(
                session_id=live.session_id,
                sampling_session_seq_id=seq_id,
                base_model=base_model,
                model_path=model_path,
            )
        )
        return SamplingClient(
            session,
            sampling_session_id=reply.sampling_session_id,
            base_model=base_model if model_path is None else None,
            model_path=model_path,
            retry_config=retry_config,
            record_stability_info=record_stability_info,
        )

    return spawn_into(BackcompatSamplingClientFuture(), work(), "create_sampling_client")


def _as_future(client: SamplingClient) -> BackcompatSamplingClientFuture:
    from .client_futures import BackcompatSamplingClientFuture

    future = BackcompatSamplingClientFuture()
    future.set_result(client)
    return future


async def _prompt_logprobs(response: APIFuture[SampleResponse]) -> list[float | None]:
    logprobs = (await response).prompt_logprobs
    assert logprobs is not None  # checked() saw to it
    return logprobs
