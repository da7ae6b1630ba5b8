"""Sharing a sampler: every client beyond the first gets a number, and with it a range of seq ids."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Connection

from tinsmith.store import Database, schema

_table = schema.sampler_clients


class SamplerClients:
    """Counts the clients of each sampler; a number is never given twice."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def join(self, sampler_id: str) -> int:
        """The number of one more client; the first one to join is 1, the sampler's own client 0."""

        def change(connection: Connection) -> int:
            here = _table.c.sampler_id == sampler_id
            joined = 1 + (connection.scalar(sa.select(_table.c.joined).where(here)) or 0)
            if joined == 1:
                connection.execute(_table.insert().values(sampler_id=sampler_id, joined=joined))
            else:
                connection.execute(_table.update().where(here).values(joined=joined))
            return joined

        return await self._database.write(change)
