"""Sharing time fairly between tenants: who has had least goes first, and nobody runs far ahead of him."""

from __future__ import annotations

from collections.abc import Iterable

from .interface import Tenant

_FADING = 0.8  # of a step's length with every further step


class Shares:
    """How much of a lane's time each tenant has had, in seconds divided by his weight.

    The tenant who has had least leads a step. Others may join it, because together is quicker than one after
    the other, until they are half a step ahead of him. What a step took is split by the tokens each had in
    it, so one who brings a crowd soon sits out while the others catch up: with two at work, neither waits
    longer than twice what he would alone.
    """

    def __init__(self) -> None:
        self._had: dict[str, float] = {}  # of those present, and of others while they are ahead
        self._present: set[str] = set()
        self._longest = 0.0  # what a step took lately
        self._tokens: dict[Tenant, int] = {}  # in the step under way

    def attend(self, tenants: Iterable[str]) -> None:
        """Who has something to do now. Time somebody did not want is not owed to him."""
        now = set(tenants)
        if now == self._present:
            return
        stayed = [self._had[name] for name in now & self._present]
        least = min(stayed, default=0.0)
        if not stayed:
            self._had.clear()  # nobody is left whom a newcomer could be ahead of
        kept = {name: had for name, had in self._had.items() if had > least}
        self._had = kept | {name: max(self._had.get(name, least), least) for name in now}
        self._present = now

    def had(self, tenant: str) -> float:
        """What he has had; comparable to what others have, and to nothing else."""
        return self._had.get(tenant, 0.0)

    def may_join(self, tenant: str) -> bool:
        """Whether he is not too far ahead for a step that another leads."""
        least = min((self._had[name] for name in self._present), default=0.0)
        return self.had(tenant) <= least + self._longest / 2

    def count(self, tenant: Tenant, tokens: int) -> None:
        """So many tokens of the step under way are his."""
        self._tokens[tenant] = self._tokens.get(tenant, 0) + tokens

    def charge(self, seconds: float, leader: Tenant, *, turn_goes_on: bool) -> None:
        """A step is over. What nobody said was his is the leader's."""
        shares = self._tokens or {leader: 1}
        together = sum(shares.values())
        for tenant, tokens in shares.items():
            used = seconds * tokens / together / tenant.weight
            self._had[tenant.name] = self.had(tenant.name) + used
        self._longest = max(seconds, _FADING * self._longest)
        if not turn_goes_on:
            self._tokens = {}
