"""Endpoints through which weights leave: archives, exports, copies; and the downloads themselves."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from email.utils import format_datetime

from starlette.responses import FileResponse, RedirectResponse, Response

from tinsmith.service.access import reader
from tinsmith.types.transfer import CopyWeightsResponse, ExternalWeightsUrlsResponse

from .call import Call, reply

_DOWNLOADS = "/api/v1/downloads/checkpoints"
_TOKEN_HEADER = "x-tinker-weights-access-token"


def weights_reader(call: Call) -> str:
    """Whose rights this call reads weights with: a token may come in the body or in a header."""
    token = call.http.headers.get(_TOKEN_HEADER) or call.body.weights_access_token
    return reader(call.owner, token, call.service.tokens, call.service.keys)


def _address(call: Call) -> tuple[str, str]:
    return call.path["run_id"], f"{call.path['kind']}/{call.path['name']}"


async def archive(call: Call) -> Response:
    """Where a checkpoint's files are to be had as one tar.gz."""
    run_id, checkpoint_id = _address(call)
    await call.service.exports.check_readable(call.owner, run_id, checkpoint_id)
    url, expires = _signed(call, f"{run_id}/{checkpoint_id}/archive.tar.gz")
    return RedirectResponse(url, 302, {"Expires": format_datetime(expires, usegmt=True)})


async def external_urls(call: Call) -> Response:
    """Where the files of an export are to be had, one by one."""
    run_id, checkpoint_id = _address(call)
    names = await call.service.exports.external_names(call.owner, run_id, checkpoint_id)
    signed = {name: _signed(call, f"{run_id}/{checkpoint_id}/files/{name}") for name in names}
    urls = {name: url for name, (url, _) in signed.items()}
    expires = min(expires for _, expires in signed.values())
    return reply(ExternalWeightsUrlsResponse(urls=urls, expires=expires))


def _signed(call: Call, path: str) -> tuple[str, datetime]:
    lifetime = call.service.settings.url_ttl
    expires = datetime.fromtimestamp(int(time.time()) + lifetime, UTC)
    return call.url(call.service.signer.sign_path(f"{_DOWNLOADS}/{path}", lifetime)), expires


async def download_archive(call: Call) -> Response:
    """A checkpoint as a tar.gz, for whoever has its signed address."""
    run_id, checkpoint_id = _address(call)
    _check_signature(call, f"{run_id}/{checkpoint_id}/archive.tar.gz")
    file = await call.service.exports.archive(run_id, checkpoint_id)
    name = f"{run_id}-{checkpoint_id}".replace("/", "-").replace(":", "-")
    return FileResponse(file, media_type="application/gzip", filename=f"{name}.tar.gz")


async def download_file(call: Call) -> Response:
    """One file of an export, for whoever has its signed address."""
    run_id, checkpoint_id = _address(call)
    name = call.path["file"]
    _check_signature(call, f"{run_id}/{checkpoint_id}/files/{name}")
    file = await call.service.exports.file(run_id, checkpoint_id, name)
    return FileResponse(file, media_type="application/octet-stream", filename=name)


def _check_signature(call: Call, path: str) -> None:
    call.service.signer.check_path(f"{_DOWNLOADS}/{path}", call.query.expires, call.query.signature)


async def copy_weights(call: Call) -> Response:
    """A copy of a checkpoint, in a project or a session."""
    key = call.http.headers.get("x-idempotency-key")
    path = await call.service.copies.copy(call.owner, call.body, weights_reader(call), key)
    return reply(CopyWeightsResponse(tinker_path=path))
