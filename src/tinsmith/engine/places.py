"""Where sequences lie in the key-value memory: shelves of rows with equal capacity, filled without gaps.

A sequence lies on the shelf its own length asks for, and moves up when it has grown. What is computed for it
therefore has a shape that follows from its length alone, never from its neighbours'. No tensors here: changes
are told to whoever holds the memory as moves of whole rows.
"""

from __future__ import annotations

from dataclasses import dataclass

PIECE = 64  # positions: the unit of capacity, and of what attention reads of a prompt at once


@dataclass(eq=False, slots=True)
class Place:
    """A row of a shelf. The bookkeeping changes it as its sequence grows and others leave."""

    capacity: int
    row: int


@dataclass(frozen=True, slots=True)
class Move:
    """Copy the first ``length`` positions of one row to another."""

    length: int
    from_capacity: int
    from_row: int
    to_capacity: int
    to_row: int


def capacity_for(length: int, step: int = PIECE) -> int:
    """At least ``length``, in steps; in wider ones for long sequences, so that shelves stay few."""
    while length > 8 * step:
        step *= 2
    return -(-length // step) * step


class Places:
    """Who lies where. The capacities of shelves go in steps of so many positions."""

    def __init__(self, step: int = PIECE) -> None:
        self._step = step
        self._shelves: dict[int, list[Place]] = {}

    def count(self, capacity: int) -> int:
        """How many rows of a shelf are in use; they are the first ones."""
        return len(self._shelves.get(capacity, ()))

    def taken(self) -> int:
        """How many sequences have a place."""
        return sum(len(shelf) for shelf in self._shelves.values())

    def take(self, length: int) -> Place:
        """A place for a sequence of so many positions."""
        capacity = capacity_for(length, self._step)
        shelf = self._shelves.setdefault(capacity, [])
        shelf.append(Place(capacity, len(shelf)))
        return shelf[-1]

    def leave(self, place: Place) -> list[Move]:
        """Give a place back; the last row of the shelf closes the gap."""
        shelf = self._shelves[place.capacity]
        last = shelf.pop()
        if last is place:
            return []
        move = Move(place.capacity, place.capacity, last.row, place.capacity, place.row)
        last.row = place.row
        shelf[place.row] = last
        return [move]

    def grow(self, place: Place, length: int) -> list[Move]:
        """Make room for so many positions."""
        if length <= place.capacity:
            return []
        old = Place(place.capacity, place.row)
        self._shelves[old.capacity][old.row] = old
        fresh = self.take(length)
        place.capacity, place.row = fresh.capacity, fresh.row
        self._shelves[fresh.capacity][fresh.row] = place
        return [Move(old.capacity, old.capacity, old.row, place.capacity, place.row), *self.leave(old)]
