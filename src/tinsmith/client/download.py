"""Files from the service: several at once, each taken up where it broke off, none shorter than announced."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from .caller import Caller
from .clock import Clock
from .errors import APIConnectionError, DownloadError, status_error
from .loop import in_thread
from .retry import Budget, Layer, call_with_retries
from .transport import Response, StreamedResponse

PARALLEL = 4
_PATIENCE = 600.0  # for all attempts of one file together
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


async def download_all(api: Caller, urls: Mapping[str, str], folder: Path, clock: Clock) -> list[Path]:
    """Every file, by name; what is there already in full is not fetched again."""
    slots = asyncio.Semaphore(PARALLEL)

    async def one(name: str, url: str) -> Path:
        async with slots:
            return await download(api, url, folder / _plain(name), clock)

    return await asyncio.gather(*(one(name, url) for name, url in urls.items()))


async def download(api: Caller, url: str, target: Path, clock: Clock) -> Path:
    """One file, under its name only once it is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    budget = Budget(Layer.CALL, _PATIENCE)
    await call_with_retries(lambda _: _attempt(api, url, target), budget, clock, f"download of {target.name}")
    return target


def unpack(archive: Path, folder: Path) -> list[Path]:
    """The files of an archive; one that would land outside the folder is refused."""
    import tarfile  # it takes as long to load as much of this client

    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
        return [folder / member.name for member in tar.getmembers() if member.isfile()]


async def _attempt(api: Caller, url: str, target: Path) -> None:
    part, mark = target.with_name(f"{target.name}.part"), target.with_name(f"{target.name}.etag")
    have = part.stat().st_size if part.exists() and mark.exists() else 0
    headers = {"range": f"bytes={have}-", "if-range": mark.read_text()} if have else {}
    headers["accept-encoding"] = "identity"  # sizes and ranges are of the file as it is
    stream = api.transport.stream(
        "GET", _within(api, url), body=None, headers=headers, timeout=api.config.timeout, pool="download"
    )
    async with stream as answer:
        fields = {name.lower(): value for name, value in answer.headers.items()}
        if answer.status_code == 416:  # what we have does not fit what is there now
            part.unlink(missing_ok=True)
            raise APIConnectionError(f"GET {target.name}", f"{target.name} has changed; fetching it anew")
        if answer.status_code not in (200, 206):
            raise status_error(
                f"GET {target.name}", Response(answer.status_code, fields, await answer.aread())
            )
        begins, size = _extent(answer.status_code, fields)
        if begins > have:
            raise DownloadError(f"{target.name}: the service began at byte {begins}, not at {have}")
        if etag := fields.get("etag"):
            mark.write_text(etag)
        await _write(answer, part, begins)
    got = part.stat().st_size
    if size is not None and got < size:
        raise APIConnectionError(f"GET {target.name}", f"{target.name} broke off after {got} of {size} bytes")
    if size is not None and got > size:
        part.unlink()
        raise DownloadError(f"{target.name}: {got} bytes came where {size} were announced")
    part.replace(target)
    mark.unlink(missing_ok=True)


def _extent(status: int, fields: Mapping[str, str]) -> tuple[int, int | None]:
    """Where the body begins in the file, and the file's size where it is told."""
    if status == 206:
        match = _RANGE.fullmatch(fields.get("content-range", ""))
        if match is None:
            raise DownloadError(
                f"the service sent a part without saying which: {fields.get('content-range')!r}"
            )
        return int(match[1]), int(match[2])
    length = fields.get("content-length")
    return 0, int(length) if length is not None and "content-encoding" not in fields else None


async def _write(answer: StreamedResponse, part: Path, begins: int) -> None:
    with part.open("r+b" if part.exists() else "wb") as file:
        file.seek(begins)
        file.truncate()
        async for piece in answer.aiter_bytes():
            await in_thread(file.write, piece) if len(piece) > 1 << 20 else file.write(piece)


def _within(api: Caller, url: str) -> str:
    """An address of our own service as a path, since the embedded one can be reached no other way."""
    parts, own = urlsplit(url), urlsplit(api.config.base_url or "http://embedded")
    if (parts.hostname, parts.port) == (own.hostname, own.port):
        path = parts.path.removeprefix(own.path.rstrip("/"))
        return f"{path}?{parts.query}" if parts.query else path
    return url


def _plain(name: str) -> str:
    """A file name that stays in its folder."""
    if not name or name.startswith(("/", "\\")) or ".." in Path(name).parts or ":" in name:
        raise DownloadError(f"{name!r} is no name for a file")
    return name
