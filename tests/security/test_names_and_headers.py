"""Names, paths, headers and queries as an attacker writes them; addresses he would have the service fetch."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from security_support import API, Scene, batch, datum, sample

NAMES = {
    "up": "..",
    "up and out": "../../../../tmp/out",
    "from the root": "/etc/passwd",
    "a folder": "a/b",
    "backwards": "..\\..\\out",
    "hidden": ".bashrc",
    "an option": "-rf",
    "a NUL": "good\0bad",
    "a line end": "good\nbad",
    "a quote": "good'; DROP TABLE checkpoints; --",
    "over-long": "x" * 256,
    "very long": "x" * 10**5,
    "nothing": "",
    "a blank": " ",
    "escaped": "%2e%2e%2fout",
    "a look-alike": "g\u043e\u043ed",  # Cyrillic
    "full width": "\uff0e\uff0e\uff0fout",
    "right to left": "good\u202etxt",
    "invisible": "go\u200bod",
    "composed": "goo\u0308d",
    "a template": "{{7*7}}",
    "an address": "http://169.254.169.254/latest",
}


@pytest.fixture(scope="module")
def run(scene: Scene) -> str:
    """A run of the attacker's."""
    return scene.mallory.run(scene.mallory.session())


@pytest.mark.parametrize("kind", ["save_weights", "save_weights_for_sampler", "save_weights_external"])
@pytest.mark.parametrize("name", NAMES)
def test_no_name_leaves_its_place(scene: Scene, run: str, name: str, kind: str) -> None:
    data = scene.service.service.settings.data_dir
    before = {path.name for path in data.parent.iterdir()} | {path.name for path in data.iterdir()}
    answer = scene.mallory.http.post(kind, json={"model_id": run, "path": NAMES[name]})
    if answer.status_code == 200:
        told = scene.mallory.result(answer.json()["request_id"])
        assert told["category"] == "user", told
        assert told["error"].startswith("name: "), told
    else:
        assert answer.status_code == 422, answer.text
    assert {path.name for path in data.parent.iterdir()} | {path.name for path in data.iterdir()} == before
    assert scene.mallory.http.get(f"training_runs/{run}/checkpoints").json()["checkpoints"] == []


@pytest.mark.parametrize("name", NAMES)
def test_no_path_finds_what_is_no_checkpoint(scene: Scene, run: str, name: str) -> None:
    for path in (f"tinker://{run}/weights/{NAMES[name]}", f"tinker://{NAMES[name]}/weights/x", NAMES[name]):
        for endpoint, body in [
            ("weights_info", {"tinker_path": path}),
            ("copy_weights", {"source_path": path, "destination_project_id": "p"}),
            ("create_sampling_session", _sampling(scene, path)),
            ("asample", {"prompt": {"chunks": []}, "sampling_params": {}, "model_path": path}),
            ("load_weights", {"session_id": scene.session, "model_seq_id": 99, "path": path}),
        ]:
            answer = scene.mallory.http.post(endpoint, json=body)
            assert answer.status_code in (400, 404, 422), (endpoint, path, answer.text)


def _sampling(scene: Scene, path: str) -> dict[str, Any]:
    return {"session_id": scene.session, "sampling_session_seq_id": 99, "model_path": path}


ADDRESSES = [
    "training_runs/%2e%2e/checkpoints/weights/x/archive",
    "training_runs/x/checkpoints/weights/%2e%2e%2f%2e%2e%2fsecret/archive",
    "training_runs/x/checkpoints/..%2f..%2f/x/archive",
    "training_runs/%00/checkpoints",
    "sessions/%0d%0aSet-Cookie:%20a=b",
    "sessions/%F0%9F%92%A9",
    "sessions/%ff%fe",
    "sessions/" + "x" * 5000,
    "sessions/x%27%20OR%20%271%27=%271",
    "samplers/direct:alice:tiny-llama",
    "downloads/checkpoints/x/weights/y/files/..%2f..%2f..%2fsecret?expires=99999999999&signature=00",
    "downloads/traces/..%2f..%2fsecret?expires=99999999999&signature=" + "0" * 64,
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_address_leads_anywhere(scene: Scene, address: str) -> None:
    request = f"GET {API}{address} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: {scene.mallory.key}\r\n"
    answer = scene.service.raw(f"{request}Connection: close\r\n\r\n".encode())
    status = int(answer.split(b" ", 2)[1])
    assert status in (400, 403, 404), answer
    assert b"Set-Cookie" not in answer.partition(b"\r\n\r\n")[0]


QUERIES = [
    "limit=-1",
    "limit=1e9",
    "limit=99999999999999999999",
    "limit=1;DROP TABLE sessions",
    "limit=1&limit=2",
    "offset=0x10",
    "unknown=1",
    "access_scope=everybody",
    "__class__=x",
    "limit[]=1",
    "limit=%00",
    "limit=" + "9" * 5000,
]


@pytest.mark.parametrize("query", QUERIES)
def test_no_query_asks_for_more_than_there_is(scene: Scene, query: str) -> None:
    answer = scene.mallory.http.get(f"sessions?{query}")
    assert answer.status_code == 400, answer.text
    assert len(answer.content) < 6000


HEADS = {
    "two lengths": b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a length and chunks": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a length below zero": b"Content-Length: -1\r\n\r\n",
    "a length without end": b"Content-Length: 99999999999999999999999\r\n\r\n",
    "a folded header": b"X-A: b\r\n c\r\nContent-Length: 0\r\n\r\n",
    "a name with a blank": b"X-A : b\r\nContent-Length: 0\r\n\r\n",
    "a NUL": b"X-A: \0\r\nContent-Length: 0\r\n\r\n",
    "a bare line feed in a value": b"X-A: b\nX-API-Key: stolen\r\nContent-Length: 0\r\n\r\n",
    "another protocol": b"Upgrade: h2c\r\nConnection: Upgrade\r\nContent-Length: 2\r\n\r\n{}",
}


@pytest.mark.parametrize("head", HEADS)
def test_a_broken_head_is_no_way_in(scene: Scene, head: str) -> None:
    """Without a key there is nothing but 400 or 401, and no request is read out of another's body."""
    request = (
        b"POST /api/v1/create_session HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n" + HEADS[head]
    )
    smuggled = b"GET /api/v1/healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    answer = scene.service.raw(request + smuggled)
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 401")), answer
    assert b'"ok"' not in answer


def test_a_forged_host_changes_addresses_for_nobody_else(scene: Scene, run: str) -> None:
    """Addresses are made for whoever asked as he asked; a signature is of the path, never of the host."""
    saved = scene.mallory.do("save_weights", model_id=run, path="forged")["path"]
    address = f"{API}training_runs/{run}/checkpoints/weights/{saved.rpartition('/')[2]}/archive"
    head = f"GET {address} HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-Host: worse.example\r\n"
    answer = scene.service.raw(f"{head}X-API-Key: {scene.mallory.key}\r\nConnection: close\r\n\r\n".encode())
    assert b"302 Found" in answer and b"worse.example" not in answer
    mine = scene.mallory.http.get(address.removeprefix(API))
    assert mine.headers["location"].startswith(scene.service.url)
    assert scene.mallory.http.delete(address.removeprefix(API).removesuffix("/archive")).status_code == 200


@contextmanager
def _listening() -> Iterator[tuple[str, list[bytes]]]:
    """A server that notes whoever comes."""
    visits: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        done = threading.Event()

        def wait() -> None:
            while not done.is_set():
                try:
                    visitor, _ = server.accept()
                except TimeoutError:
                    continue
                visits.append(b"")
                visitor.close()

        thread = threading.Thread(target=wait)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}/x", visits
        finally:
            done.set()
            thread.join()


def test_no_address_in_a_request_is_ever_fetched(scene: Scene, run: str) -> None:
    """Wherever a text fits, and wherever an image could be meant."""
    mallory = scene.mallory
    with _listening() as (url, visits):
        pointer = {"chunks": [{"type": "image_asset_pointer", "location": url, "format": "png", "tokens": 1}]}
        picture = {"chunks": [{"type": "image", "data": "aGk=", "format": "png", "expected_tokens": 1}]}
        bodies: list[tuple[str, dict[str, Any]]] = [
            ("create_session", {"tags": [url], "project_id": url, "user_metadata": {"webhook": url}}),
            ("create_model", {"session_id": scene.session, "model_seq_id": 50, "base_model": url}),
            ("create_sampling_session", _sampling(scene, url) | {"base_model": url}),
            ("asample", sample(scene.sampler, 501, prompt=pointer)),
            ("asample", sample(scene.sampler, 502, prompt=picture)),
            ("forward_backward", batch(run, None, datum() | {"model_input": pointer})),
            ("forward_backward", batch(run, None, loss_fn=url)),
            ("load_weights", {"session_id": scene.session, "model_seq_id": 51, "path": url}),
            ("save_weights_external", {"model_id": run, "path": "o", "age_encryption_recipients": [url]}),
            ("copy_weights", {"source_path": url, "destination_project_id": url}),
            ("weights_info", {"tinker_path": url}),
            ("telemetry", {"events": [{"url": url}], "platform": url}),
            ("client/config", {"sdk_version": url}),
        ]
        for path, body in bodies:
            answer = mallory.http.post(path, json=body, headers={"Referer": url, "X-Forwarded-Host": url})
            assert answer.status_code < 500, (path, answer.text)
            if answer.status_code == 200 and "request_id" in answer.json():
                mallory.result(answer.json()["request_id"])
        assert mallory.do("asample", **sample(scene.sampler, 503))["sequences"][0]["tokens"]
    assert visits == []
