"""Archives, exports, copies, and reading with another account's token."""

from __future__ import annotations

import asyncio
import io
import re
import stat
import tarfile
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_support import Api, Serve, make_key

PEFT_FILES = {"adapter_config.json", "adapter_model.safetensors", "checkpoint_complete"}


async def _saved(api: Api, name: str = "first", seq: int = 1, **options: Any) -> str:
    run = await api.run(await api.session())
    return (await api.do("save_weights", model_id=run, path=name, seq_id=seq, **options))["path"]


def _checkpoint(path: str) -> str:
    run_id, _, rest = path.removeprefix("tinker://").partition("/")
    return f"training_runs/{run_id}/checkpoints/{rest}"


async def _archive(api: Api, path: str) -> httpx.Response:
    response = await api.http.get(f"{_checkpoint(path)}/archive")
    assert response.status_code == 302, response.text
    return response


def test_an_archive_is_a_deterministic_tar_of_the_peft_files(serve: Serve, tmp_path: Path) -> None:
    async def main() -> None:
        async with serve(url_ttl=600) as api:
            path = await _saved(api)
            redirect = await _archive(api, path)
            assert parsedate_to_datetime(redirect.headers["expires"]) > datetime.now(UTC)
            url = redirect.headers["location"]
            response = await api.http.get(url)
            assert response.headers["content-type"] == "application/gzip"
            with tarfile.open(fileobj=io.BytesIO(response.content), mode="r:gz") as archive:
                assert set(archive.getnames()) == PEFT_FILES
                assert {(m.mtime, m.uid, m.uname, m.mode) for m in archive} == {(0, 0, "", 0o644)}
            part = await api.http.get(url, headers={"Range": "bytes=10-99"})
            assert part.status_code == 206 and part.content == response.content[10:100]
            (made,) = (tmp_path / "data" / "archives").glob("*.tar.gz")
            made.unlink()
            again = await api.http.get(url)
            assert again.content == response.content
            assert again.headers["etag"] == response.headers["etag"]
        secret = tmp_path / "data" / "secret"
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600

    asyncio.run(main())


def test_an_address_is_good_for_what_it_was_made_for_and_no_longer(serve: Serve) -> None:
    async def main() -> None:
        async with serve(url_ttl=60) as api:
            first, second = await _saved(api), await _saved(api)
            url = (await _archive(api, first)).headers["location"]
            run_of = [path.split("/")[2] for path in (first, second)]
            changed = [
                url[:-1] + ("0" if url[-1] != "0" else "1"),
                url.replace(*run_of),
                re.sub(r"expires=\d+", "expires=99999999999", url),
                url.replace("archive.tar.gz", "files/adapter_config.json"),
            ]
            for wrong in changed:
                response = await api.http.get(wrong)
                assert response.status_code == 403, wrong
                assert "signature" in response.json()["detail"]
            assert (await api.http.get(url.partition("?")[0])).status_code == 400
            await api.http.delete(_checkpoint(first))
            assert (await api.http.get(url)).status_code == 404

    asyncio.run(main())


def test_an_expired_address_is_410(serve: Serve) -> None:
    from tinsmith.service.signing import Signer

    async def main() -> None:
        async with serve() as api:
            path = await _saved(api)
            url = (await _archive(api, path)).headers["location"]
            signer: Signer = api.service.signer
            old = signer.sign_path(httpx.URL(url).path, -1)
            response = await api.http.get(f"http://test{old}")
            assert response.status_code == 410 and "expired" in response.json()["detail"]

    asyncio.run(main())


@pytest.mark.parametrize("name", ["..", "%2e%2e", "..%2f..%2fsecret", "optimizer.safetensors", "absent"])
def test_no_address_leads_out_of_the_checkpoint(serve: Serve, name: str) -> None:
    async def main() -> None:
        async with serve() as api:
            run = await api.run(await api.session())
            saved = await api.do("save_weights_external", model_id=run, path="out", seq_id=1)
            base = f"/api/v1/downloads/checkpoints/{saved['path'].removeprefix('tinker://')}/files"
            signed = api.service.signer.sign_path(f"{base}/{httpx.URL(f'http://x/{name}').path[1:]}", 60)
            query = signed.partition("?")[2]
            response = await api.http.get(httpx.URL(f"http://test{base}/{name}?{query}"))
            assert response.status_code in (403, 404)

    asyncio.run(main())


def test_lists_spare_old_sdks_a_type_they_cannot_read(serve: Serve) -> None:
    """Official SDKs before 0.28 refuse a whole list with one export in it."""

    async def main() -> None:
        async with serve() as api:
            run = await api.run(await api.session())
            await api.do("save_weights", model_id=run, path="w", seq_id=1)
            await api.do("save_weights_external", model_id=run, path="out", seq_id=2)
            for version, types in {
                "0.4.1": ["training"],
                "0.27.0": ["training"],
                "0.28.0": ["external", "training"],
                "1.0": ["external", "training"],
                "not a version": ["external", "training"],
                None: ["external", "training"],
            }.items():
                headers = {} if version is None else {"X-Stainless-Package-Version": version}
                for path in (f"training_runs/{run}/checkpoints", "checkpoints"):
                    answer = (await api.http.get(path, headers=headers)).json()
                    assert sorted(each["checkpoint_type"] for each in answer["checkpoints"]) == types
                    assert answer.get("cursor", {"total_count": len(types)})["total_count"] == len(types)

    asyncio.run(main())


def test_an_export_gives_one_address_a_file(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            run = await api.run(await api.session())
            saved = await api.do(
                "save_weights_external", model_id=run, path="out", seq_id=1, ttl_seconds=3600
            )
            assert saved["path"] == f"tinker://{run}/external_weights/out"
            answer = (await api.http.get(f"{_checkpoint(saved['path'])}/external_weights_urls")).json()
            assert datetime.fromisoformat(answer["expires"]) > datetime.now(UTC)
            assert set(answer["urls"]) == PEFT_FILES
            sizes = [len((await api.http.get(url)).content) for url in answer["urls"].values()]
            assert sum(sizes) == saved["size_bytes"]
            (listed,) = (await api.http.get(f"training_runs/{run}/checkpoints")).json()["checkpoints"]
            assert listed["checkpoint_type"] == "external" and listed["expires_at"]
            other = await api.do("save_weights", model_id=run, path="w", seq_id=2)
            refused = await api.http.get(f"{_checkpoint(other['path'])}/external_weights_urls")
            assert refused.status_code == 400 and "external_weights" in refused.json()["detail"]

    asyncio.run(main())


def test_an_export_is_encrypted_to_its_recipients(serve: Serve) -> None:
    pyrage = pytest.importorskip("pyrage")
    identities = [pyrage.x25519.Identity.generate() for _ in range(2)]

    async def main() -> None:
        async with serve() as api:
            run = await api.run(await api.session())
            plain = await api.do("save_weights_external", model_id=run, path="plain", seq_id=1)
            to = [str(identity.to_public()) for identity in identities]
            sealed = await api.do(
                "save_weights_external", model_id=run, path="sealed", seq_id=2, age_encryption_recipients=to
            )
            contents = []
            for saved in (plain, sealed):
                answer = (await api.http.get(f"{_checkpoint(saved['path'])}/external_weights_urls")).json()
                contents.append({n: (await api.http.get(u)).content for n, u in answer["urls"].items()})
            assert set(contents[1]) == {f"{name}.age" for name in PEFT_FILES}
            for identity in identities:
                opened = {n: pyrage.decrypt(c, [identity]) for n, c in contents[1].items()}
                assert {n.removesuffix(".age"): c for n, c in opened.items()} == contents[0]
            wrong = await api.do(
                "save_weights_external",
                model_id=run,
                path="wrong",
                seq_id=3,
                age_encryption_recipients=[to[0], "age1x"],
            )
            assert "age_encryption_recipients[1]" in wrong["error"] and wrong["category"] == "user"

    asyncio.run(main())


def test_a_copy_has_a_life_of_its_own(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            session = await api.session()
            run = await api.run(session)
            await api.loss(run, 1)
            await api.do("optim_step", adam_params={"learning_rate": 0.1}, model_id=run, seq_id=2)
            expected = (await api.loss(run, 3, "forward"))["metrics"]["loss:sum"]
            source = (await api.do("save_weights", model_id=run, path="first", seq_id=4))["path"]
            into = {"session_id": session, "model_seq_id": 7, "ttl_seconds": 7200}
            copy = (await api.post("copy_weights", source_path=source, **into))["tinker_path"]
            assert copy == f"tinker://{session}:train:7/weights/first"
            assert (await api.post("copy_weights", source_path=source, **into))["tinker_path"] == copy
            await api.do("save_weights", model_id=run, path="first", seq_id=5, overwrite=True)
            assert (await api.http.delete(_checkpoint(source))).status_code == 200
            loaded = await api.do(
                "load_weights", session_id=session, model_seq_id=8, path=copy, optimizer=True
            )
            assert (await api.loss(loaded["model_id"], 1, "forward"))["metrics"]["loss:sum"] == expected
            taken = await api.http.post(
                "copy_weights", json={"source_path": copy, "session_id": session, "model_seq_id": 8}
            )
            assert taken.status_code == 400 and "model_seq_id" in taken.json()["detail"]
            refused = await api.http.post(
                "optim_step", json={"model_id": f"{session}:train:7", "adam_params": {}, "seq_id": 1}
            )
            assert refused.status_code == 404

    asyncio.run(main())


def test_a_copy_into_a_project_is_made_once_for_one_idempotency_key(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            source = await _saved(api)
            body = {"source_path": source, "destination_project_id": "kept"}
            answers = [
                (await api.http.post("copy_weights", json=body, headers={"X-Idempotency-Key": key})).json()
                for key in ("one", "one", "two")
            ]
            assert answers[0] == answers[1] != answers[2]
            listed = (await api.http.get("training_runs", params={"project_id": "kept"})).json()
            assert listed["cursor"]["total_count"] == 2
            for wrong in ({}, {"session_id": "x"}, {"destination_project_id": "p", "session_id": "x"}):
                response = await api.http.post("copy_weights", json={"source_path": source} | wrong)
                assert response.status_code == 422, wrong

    asyncio.run(main())


def test_another_accounts_weights_need_its_token_or_to_be_public(serve: Serve, tmp_path: Path) -> None:
    alice, bob = (make_key(tmp_path / "data", name) for name in ("alice", "bob"))

    async def main() -> None:
        async with serve() as api:
            api.http.headers["X-API-Key"] = alice
            source = await _saved(api)
            token = (await api.post("auth/token"))["jwt"]
            api.http.headers["X-API-Key"] = bob
            session = await api.session()
            load = {"session_id": session, "path": source, "optimizer": False}
            copy = {"source_path": source, "destination_project_id": "p"}
            for path, body in (
                ("load_weights", load | {"model_seq_id": 0}),
                ("copy_weights", copy),
                ("weights_info", {"tinker_path": source}),
            ):
                assert (await api.http.post(path, json=body)).status_code == 404, path
            assert (await api.http.get(f"{_checkpoint(source)}/archive")).status_code == 404
            wrong = await api.http.post(
                "load_weights", json=load | {"model_seq_id": 0, "weights_access_token": "eyJx"}
            )
            assert wrong.status_code == 403 and "weights_access_token" in wrong.json()["detail"]
            loaded = await api.do("load_weights", **load, model_seq_id=0, weights_access_token=token)
            assert loaded["model_id"] == f"{session}:train:0"
            header = {"X-Tinker-Weights-Access-Token": token}
            assert (await api.http.post("copy_weights", json=copy, headers=header)).status_code == 200
            api.http.headers["X-API-Key"] = alice
            for _ in range(2):
                assert (await api.http.post(f"{_checkpoint(source)}/publish")).status_code == 200
            api.http.headers["X-API-Key"] = bob
            assert (await api.do("load_weights", **load, model_seq_id=1))["model_id"]
            assert (await api.http.post(f"{_checkpoint(source)}/publish")).status_code == 404
            assert (await api.http.delete(_checkpoint(source))).status_code == 404
        assert token.encode() not in (tmp_path / "data" / "tinsmith.sqlite").read_bytes()
        async with serve() as api:  # the load is replayed with the rights it was accepted with
            api.http.headers["X-API-Key"] = bob
            assert "loss:sum" in (await api.loss(f"{session}:train:0", 1))["metrics"]

    asyncio.run(main())


def test_overwriting_replaces_the_metadata_as_a_whole_and_frees_the_old_files(
    serve: Serve, tmp_path: Path
) -> None:
    async def main() -> None:
        async with serve() as api:
            run = await api.run(await api.session())
            save = {"model_id": run, "path": "same"}
            await api.do("save_weights", **save, seq_id=1, user_metadata={"a": "1"}, ttl_seconds=7200)
            taken = await api.do("save_weights", **save, seq_id=2)
            assert "overwrite" in taken["error"]
            await api.do("save_weights", **save, seq_id=3, overwrite=True, user_metadata={"b": "2"})
            (kept,) = (await api.http.get(f"training_runs/{run}/checkpoints")).json()["checkpoints"]
            assert kept["user_metadata"] == {"b": "2"} and "expires_at" not in kept
        folders = list((tmp_path / "data" / "blobs").rglob("adapter_config.json"))
        assert len(folders) == 1

    asyncio.run(main())
