"""Which samples of a sampler have finished: one poll for all of them instead of one for each."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import sqlalchemy as sa

from tinsmith.store import Database, schema
from tinsmith.types import UserError
from tinsmith.types.polling import (
    SEQ_IDS_PER_CLIENT,
    Failed,
    Finished,
    RetrieveFuturesRequest,
    RetrieveFuturesResponse,
    SamplingTarget,
)

from . import ids
from .futures import Futures, Outcome, Ticket

Target = tuple[str, int]  # a sampler and one of its clients
_MOST_FEEDS = 2**14  # in memory; the longest unasked goes, and is made anew when it is asked for


@dataclass(slots=True)
class Feed:
    """What has finished for one client, each event with the cursor after it.

    A feed lives in memory. One that is made anew (the service restarted, or nobody asked for long) counts
    on from its client's cursor and tells of every answer that was not acknowledged, so a client may hear
    of one twice, but never misses one.
    """

    cursor: int
    events: dict[int, Finished | Failed] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    asked_at: float = field(default_factory=time.monotonic)

    def add(self, event: Finished | Failed) -> None:
        """One more has finished."""
        self.cursor += 1
        self.events[self.cursor] = event
        self.changed.set()

    def trim(self, seen: int) -> None:
        """The client has seen everything up to this cursor."""
        self.events = {cursor: event for cursor, event in self.events.items() if cursor > seen}
        if not self.events:
            self.changed.clear()


class Completions:
    """The feeds of all clients that ask for one."""

    def __init__(self, database: Database, futures: Futures) -> None:
        self._database = database
        self._futures = futures
        self._feeds: dict[Target, Feed] = {}
        futures.listeners.append(self._hear)

    async def poll(self, owner: str, request: RetrieveFuturesRequest, hold: float) -> RetrieveFuturesResponse:
        """What has finished after the cursor; if nothing has, wait for it at most ``hold`` seconds."""
        target = request.target
        if request.retrieved_request_ids:
            _check_ids(target, request.retrieved_request_ids)
            await self._futures.acknowledge(request.retrieved_request_ids, owner)
        target_id = (target.sampling_session_id, target.cloned_sampler_id)
        feed = await self._feed(target_id, request.prev_cursor)
        feed.asked_at = time.monotonic()
        self._feeds[target_id] = self._feeds.pop(target_id, feed)  # the last asked is last
        while len(self._feeds) > _MOST_FEEDS:
            del self._feeds[next(iter(self._feeds))]
        feed.trim(request.prev_cursor)
        if not feed.events and hold > 0:
            await _wait(feed, hold)
        return RetrieveFuturesResponse(completions=list(feed.events.values()), cursor=feed.cursor)

    async def _feed(self, target: Target, cursor: int) -> Feed:
        feed = self._feeds.get(target)
        if feed is not None and cursor <= feed.cursor:
            return feed
        feed = self._feeds[target] = Feed(cursor)  # from here on it hears of new answers
        told = set()
        for request_id, outcome in self._futures.unwritten_of(target[0]):
            if _client(request_id) == target[1]:
                told.add(request_id)
                feed.add(_event(request_id, outcome.error is not None, len(outcome.body)))
        for event in await self._unacknowledged(target):
            if event.request_id not in told | {known.request_id for known in feed.events.values()}:
                feed.add(event)
        return feed

    async def _unacknowledged(self, target: Target) -> list[Finished | Failed]:
        operations, results, answers = schema.operations, schema.results, schema.answers
        sampler_id, client = target
        first = client * SEQ_IDS_PER_CLIENT
        query = (
            sa.select(results.c.request_id, results.c.error.is_not(None), results.c.size)
            .join(operations, operations.c.request_id == results.c.request_id)
            .join(answers, answers.c.request_id == results.c.request_id)  # not acknowledged
            .where(operations.c.stream_id == sampler_id)
            .where(operations.c.seq_id >= first, operations.c.seq_id < first + SEQ_IDS_PER_CLIENT)
            .order_by(results.c.finished_at)
        )
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return [_event(*row) for row in rows]

    def _hear(self, ticket: Ticket, outcome: Outcome) -> None:
        if ticket.kind != "sample":
            return
        feed = self._feeds.get((ticket.stream_id, _client(ticket.request_id)))
        if feed is not None:
            feed.add(_event(ticket.request_id, outcome.error is not None, len(outcome.body)))

    def let_go(self) -> None:
        """The service is stopping: whoever waits shall ask again, of the next one."""
        for feed in self._feeds.values():
            feed.changed.set()

    def forget_unasked(self, seconds: float) -> None:
        """Drop the feeds nobody has asked for lately."""
        before = time.monotonic() - seconds
        self._feeds = {target: feed for target, feed in self._feeds.items() if feed.asked_at >= before}


async def _wait(feed: Feed, hold: float) -> None:
    try:
        async with asyncio.timeout(hold):
            await feed.changed.wait()
    except TimeoutError:
        return


def _event(request_id: str, failed: bool, size: int) -> Finished | Failed:
    if failed:
        return Failed(request_id=request_id)
    return Finished(request_id=request_id, response_payload_uncompressed_size=size)


def _client(request_id: str) -> int:
    return ids.seq_id(request_id) // SEQ_IDS_PER_CLIENT


def _check_ids(target: SamplingTarget, request_ids: list[str]) -> None:
    prefix = f"{target.sampling_session_id}:"
    for request_id in request_ids:
        number = request_id.removeprefix(prefix)
        ours = request_id.startswith(prefix) and number.isascii() and number.isdecimal()
        if not ours or int(number[:20]) // SEQ_IDS_PER_CLIENT != target.cloned_sampler_id:
            raise UserError(f"{request_id[:200]!r} is not of the target", field="retrieved_request_ids")
