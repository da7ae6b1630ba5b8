"""SamplingClient: samples of one immutable set of weights."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING

from tinsmith.types import (
    CreateSamplingSessionRequest,
    ModelInput,
    SampleJob,
    SampleResponse,
    SamplingParams,
    TensorData,
)
from tinsmith.types.checkpoint import ParsedCheckpointTinkerPath

from .errors import RateLimitError, RequestFailedError, ResultExpiredError, TinkerError
from .futures import APIFuture, spawn, spawn_into
from .loop import background
from .polling import QueueWatch
from .replies import Submitted
from .results import SAMPLE
from .retry import Budget, Layer, RetryConfig, call_with_retries, hint_of, should_retry
from .samples import Progress, check, checked, encode, with_ids
from .session import Live, Session
from .tokenizer import load_tokenizer, tokenizer_id

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from .client_futures import BackcompatSamplingClientFuture

_log = logging.getLogger("tinsmith")
_RESAMPLES = 5


class SamplingClient:
    """Samples from a base model or from saved weights. Made by a `ServiceClient` or a `TrainingClient`.

    ::

        prompt = tinsmith.ModelInput.from_ints(tokenizer.encode("Once upon a time"))
        response = sampling_client.sample(prompt, 2, tinsmith.SamplingParams(max_tokens=20)).result()
        for sequence in response.sequences:
            print(tokenizer.decode(sequence.tokens))

    Thousands of samples may be asked for at once; when the service asks for a pause, all clients of
    that service wait together, and nothing is lost.
    """

    def __init__(
        self,
        session: Session,
        live: Live,
        sampling_session_id: str,
        *,
        base_model: str | None = None,
        model_path: str | None = None,
        tokenizer: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
    ) -> None:
        self._session = session
        self._live = live
        self._id = sampling_session_id
        self._base_model = base_model
        self._model_path = model_path
        self._tokenizer = tokenizer
        self._retry = retry_config or RetryConfig()
        self._stability = record_stability_info
        self._seq_ids = itertools.count()
        self._slots = asyncio.Semaphore(self._retry.max_connections)
        self._progress = Progress(self._retry.progress_timeout, session.clock)
        self._watch = QueueWatch(f"sampling from {sampling_session_id}", session.clock)

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
        return spawn(self._sample(job, next(self._seq_ids)), "sample")

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
            sampler = await self._live.api.sampler(self._id)
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

    async def _named_tokenizer(self) -> str | None:
        """What the service says: of the sampler, or of the run its weights come from."""
        sampler = await self._live.api.sampler(self._id)
        if sampler.tokenizer_id is not None or self._model_path is None:
            return sampler.tokenizer_id
        run = ParsedCheckpointTinkerPath.from_tinker_path(self._model_path).training_run_id
        return (await self._live.api.get_info(run)).model_data.tokenizer_id

    # ---- how a sample is had --------------------------------------------------------------------

    async def _sample(self, job: SampleJob, seq_id: int) -> SampleResponse:
        with self._live.telemetry.noting_errors():
            async with self._slots:
                self._progress.began()
                try:
                    return await self._until_sampled(job, seq_id)
                finally:
                    self._progress.ended()

    async def _until_sampled(self, job: SampleJob, seq_id: int) -> SampleResponse:
        """Samples are repeatable, so one whose result the service lost is asked for anew, a few times."""
        losses = 0
        while True:
            submitted = await self._submit(encode(job, self._id, seq_id, self._stability))
            try:
                response = await self._outcome(submitted)
            except (ResultExpiredError, RequestFailedError) as error:
                if losses == _RESAMPLES or not self._asks_anew(error):
                    raise
                _log.info("asking for a new sample: %s", error)
                await self._session.clock.sleep(self._retry.delay.after(losses, self._session.clock.chance()))
                losses, seq_id = losses + 1, next(self._seq_ids)
                continue
            return checked(job, with_ids(response, submitted.sample_sequence_ids))

    def _asks_anew(self, error: Exception) -> bool:
        if not self._retry.enable_retry_logic:
            return False
        if isinstance(error, RequestFailedError):
            return self._retry.retry_failed and error.category.value != "user"
        return isinstance(error.__cause__, Exception) and should_retry(error.__cause__, Layer.RESAMPLE)

    async def _submit(self, body: bytes) -> Submitted:
        """Through the gate; the seq id stays the same however often the service asks for a pause."""
        while True:
            async with self._live.gate.slot(), self._live.sample_bytes.hold(len(body)):
                self._progress.check()
                try:
                    return await self._try_submit(body)
                except RateLimitError as error:
                    if not self._retry.enable_retry_logic:
                        raise
                    self._live.gate.pause(hint_of(error))

    async def _try_submit(self, body: bytes) -> Submitted:
        if not self._retry.enable_retry_logic:
            return await self._live.api.sample(body)
        retries = self._session.config.max_retries
        budget = Budget(Layer.SAMPLE, self._retry.progress_timeout, retries, self._retry.delay)
        return await call_with_retries(
            lambda _: self._live.api.sample(body), budget, self._session.clock, "asample"
        )

    async def _outcome(self, submitted: Submitted) -> SampleResponse:
        try:
            return await self._live.poller.wait(
                submitted.request_id, SAMPLE, self._watch, self._progress.check
            )
        except asyncio.CancelledError:
            background().start(_abandon(self._live, submitted.request_id), "cancel a sample")
            raise


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
            live,
            reply.sampling_session_id,
            base_model=base_model if model_path is None else None,
            model_path=model_path,
            retry_config=retry_config,
            record_stability_info=record_stability_info,
        )

    return spawn_into(BackcompatSamplingClientFuture(), work(), "create_sampling_client")


async def _abandon(live: Live, request_id: str) -> None:
    try:
        await live.api.cancel_future(request_id)
    except TinkerError as error:  # a courtesy: a service that does not know it samples on
        _log.debug("request %s could not be cancelled: %s", request_id, error)


async def _prompt_logprobs(response: APIFuture[SampleResponse]) -> list[float | None]:
    logprobs = (await response).prompt_logprobs
    assert logprobs is not None  # checked() saw to it
    return logprobs
