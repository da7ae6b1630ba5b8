"""Where the tokens of a packed pass lie: rows end to end without padding, a shared prompt only once.

A pass works on *slots*, one for every token it computes. Rows of one run that begin alike share the slots of
their common prefix; what follows is each row's own segment, which attends to the prefix and to itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .kernels import MIN_ROWS

Tokens = npt.NDArray[np.int64]
MIN_SHARED = 16  # a shorter common beginning is not worth a segment of its own


@dataclass(frozen=True, slots=True)
class Group:
    """Rows, by index, whose first ``shared`` tokens are the same and are computed once."""

    shared: int
    rows: tuple[int, ...]

    def slots(self, lengths: Sequence[int]) -> int:
        """How many tokens have to be computed."""
        return self.shared + sum(lengths[row] - self.shared for row in self.rows)


@dataclass(frozen=True, slots=True)
class Segment:
    """Slots start..stop, each of which attends to all of its prefix and to its own segment up to itself."""

    start: int
    stop: int
    prefix: slice  # the slots before its own that it attends to; may be empty


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The slots of one pass over the rows of several runs."""

    tokens: Tensor  # [slots]
    positions: Tensor  # [slots]
    segments: tuple[Segment, ...]
    runs: tuple[slice, ...]  # the slots of every run
    rows: tuple[dict[int, Tensor], ...]  # of every run: a row's index -> the slots of its tokens


def share_prefixes(rows: Sequence[Tokens]) -> list[Group]:
    """The partition into groups that leaves the fewest tokens to compute.

    In alphabetical order rows that begin alike are neighbours, so groups are runs of neighbours:
    least[end] = min over start of least[start] + the slots of order[start:end].
    """
    order = sorted(range(len(rows)), key=lambda at: rows[at].astype(">u4").tobytes())
    alike = [0, *(_common(rows[a], rows[b]) for a, b in itertools.pairwise(order))]
    lengths = [len(row) for row in rows]
    least, begin = [0] * (len(order) + 1), [0] * (len(order) + 1)
    prefix = [0] * (len(order) + 1)
    for end in range(1, len(order) + 1):
        own, shared = 0, 0
        for start in range(end - 1, -1, -1):
            own += lengths[order[start]]
            if start < end - 1:
                shared = alike[start + 1] if start == end - 2 else min(shared, alike[start + 1])
                if shared < MIN_SHARED:
                    break
            cost = least[start] + own - shared * (end - 1 - start)
            if start == end - 1 or cost < least[end]:
                least[end], begin[end], prefix[end] = cost, start, shared
    groups, end = [], len(order)
    while end:
        groups.append(Group(prefix[end], tuple(sorted(order[begin[end] : end]))))
        end = begin[end]
    return sorted(groups, key=lambda group: group.rows)


def _common(one: Tokens, other: Tokens) -> int:
    """The length of the common prefix."""
    length = min(len(one), len(other))
    differ = one[:length] != other[:length]
    return int(differ.argmax()) if differ.any() else length


def micro_batches(rows: Sequence[Tokens], slots_at_once: int) -> list[list[Group]]:
    """The rows in portions of at most so many slots; a longer row goes alone.

    Two thirds are filled; the rest is for groups that would otherwise be cut, their prefix computed twice.
    """
    lengths = [len(row) for row in rows]
    usual = slots_at_once * 2 // 3
    portions: list[list[Group]] = []
    room = 0
    for whole in share_prefixes(rows):
        for group in _cut(whole, lengths, slots_at_once):
            size = group.slots(lengths)
            if not portions or size > room:
                portions.append([])
                room = usual
            portions[-1].append(group)
            room -= size
    return portions


def _cut(group: Group, lengths: Sequence[int], slots_at_once: int) -> list[Group]:
    """A group too large for one portion is cut, and its prefix computed once in each."""
    pieces: list[list[int]] = []
    room = 0
    for row in group.rows:
        own = lengths[row] - group.shared
        if not pieces or own > room:
            pieces.append([])
            room = slots_at_once - group.shared
        pieces[-1].append(row)
        room -= own
    return [Group(group.shared if len(piece) > 1 else 0, tuple(piece)) for piece in pieces]


def lay_out(runs: Sequence[tuple[Sequence[Tokens], Sequence[Group]]], device: torch.device) -> Layout:
    """Give every token of every run its slot. A run's part looks the same whoever its neighbours are."""
    tokens: list[Tokens] = []
    positions: list[Tokens] = []
    segments: list[Segment] = []
    spans, slots_of_rows = [], []
    end, nothing = 0, slice(0, 0)

    def append(part: Tokens, first_position: int, prefix: slice) -> slice:
        nonlocal end
        start, end = end, end + len(part)
        if len(part):
            tokens.append(part)
            positions.append(np.arange(first_position, first_position + len(part)))
            segments.append(Segment(start, end, prefix))
        return slice(start, end)

    for rows, groups in runs:
        run_start, slots = end, {}
        for group in groups:
            prefix = append(rows[group.rows[0]][: group.shared], 0, nothing)
            for row in group.rows:
                own = append(rows[row][group.shared :], group.shared, prefix)
                slots[row] = torch.cat(
                    [torch.arange(at.start, at.stop, device=device) for at in (prefix, own)]
                )
        if end - run_start < MIN_ROWS:  # so that products treat its rows as they treat those of a large run
            append(np.zeros(MIN_ROWS - (end - run_start), np.int64), 0, nothing)
        spans.append(slice(run_start, end))
        slots_of_rows.append(slots)
    flat, places = (torch.from_numpy(np.concatenate(part)).to(device) for part in (tokens, positions))
    return Layout(flat, places, tuple(segments), tuple(spans), tuple(slots_of_rows))
