"""The client and its process: the embedded service, forks, and an exit that never hangs."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest
from client_stub import Stub

import tinsmith

HERE = Path(__file__).parent


@pytest.fixture
def embedded(monkeypatch):
    """A module in the place of the embedded service."""
    module = types.ModuleType("tinsmith.embedded")
    module.app = Stub()
    module.users = 0

    async def acquire():
        module.users += 1
        return module.app

    async def release():
        module.users -= 1

    module.acquire, module.release = acquire, release
    monkeypatch.setitem(sys.modules, "tinsmith.embedded", module)
    return module


def test_with_nothing_configured_the_service_is_in_this_process(embedded, caplog):
    caplog.set_level("INFO", "tinsmith")
    with tinsmith.ServiceClient() as service:
        assert service.config.base_url is None
        assert embedded.users == 0
        training = service.create_lora_training_client("m").result(30)
        datum = tinsmith.Datum(tinsmith.ModelInput.from_ints([1]), {"target_tokens": [1], "weights": [1.0]})
        assert training.forward_backward([datum], "cross_entropy").result(30).loss == 1.0
        assert embedded.users == 1
    assert embedded.users == 0
    assert "tinsmith uses the embedded service in this process" in caplog.text


def test_an_app_that_crashes_is_a_500(embedded):
    async def crash(request):
        raise ValueError("inside the app")

    embedded.app.script["create_session"].extend([crash] * 50)
    with (
        tinsmith.ServiceClient(max_retries=0) as service,
        pytest.raises(tinsmith.InternalServerError),
    ):
        service.create_lora_training_client("m").result(30)


@pytest.mark.parametrize("fails", ["import", "acquire"])
def test_missing_packages_are_named(embedded, monkeypatch, fails):
    async def acquire():
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    embedded.acquire = acquire
    if fails == "import":
        monkeypatch.setitem(sys.modules, "tinsmith.embedded", None)
    service = tinsmith.ServiceClient()
    with pytest.raises(ImportError, match=r"tinsmith\[serve\].*TINKER_BASE_URL"):
        service.get_server_capabilities()
    service.close().result(30)


PRELUDE = f"""
import gc, os, sys, threading
sys.path.insert(0, {str(HERE)!r})
from client_stub import Answer, Stub, serve
import tinsmith
stub = Stub()
context = serve(stub)
url = context.__enter__()
os.environ["TINKER_TELEMETRY"] = "0"
"""


def script(code: str) -> str:
    """Run in a process of its own; it must end by itself."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PRELUDE + code], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


def test_exit_with_everything_still_open():
    out = script("""
service = tinsmith.ServiceClient(base_url=url)
training = service.create_lora_training_client("m").result(30)
async def hold(request):
    import asyncio
    await asyncio.sleep(3600)
stub.script["retrieve_future"].extend([hold] * 10)
future = training.optim_step(tinsmith.AdamParams())
stub.wait_for("retrieve_future", 2)
print("leaving")
""")
    assert out == "leaving\n"


def test_exit_while_a_custom_loss_runs():
    out = script("""
import pytest
try:
    import torch
except ImportError:
    print("leaving"); sys.exit()
service = tinsmith.ServiceClient(base_url=url)
training = service.create_lora_training_client("m").result(30)
running = threading.Event()
def loss(data, logprobs):
    running.set()
    threading.Event().wait()
datum = tinsmith.Datum(tinsmith.ModelInput.from_ints([1]), {"target_tokens": [1]})
future = training.forward_backward_custom([datum], loss)
running.wait()
print("leaving")
""")
    assert out == "leaving\n"


def test_the_embedded_service_may_still_use_threads_while_the_process_exits():
    out = script("""
import asyncio, types
module = types.ModuleType("tinsmith.embedded")
async def acquire(): return stub
async def release(): await asyncio.to_thread(print, "closed", flush=True)
module.acquire, module.release = acquire, release
sys.modules["tinsmith.embedded"] = module
service = tinsmith.ServiceClient()
service.get_server_capabilities()
""")
    assert out == "closed\n"


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no fork here")
def test_a_forked_child_is_told_and_can_start_anew():
    out = script("""
service = tinsmith.ServiceClient(base_url=url)
training = service.create_lora_training_client("m").result(30)
pending = training.optim_step(tinsmith.AdamParams())
pending.result(30)
unfinished = tinsmith.client.futures.spawn(__import__("asyncio").sleep(3600), "sleep")
import warnings; warnings.simplefilter("ignore")
sys.stdout.flush()
child = os.fork()
if child == 0:
    code = 1
    try:
        for use in (
            lambda: training.optim_step(tinsmith.AdamParams()),
            lambda: service.create_sampling_client(base_model="m"),
            lambda: unfinished.result(),
        ):
            try:
                use()
            except tinsmith.ForkedProcessError as error:
                assert "new ServiceClient" in str(error)
            else:
                raise AssertionError("no error")
        del service, training
        gc.collect()
        fresh = tinsmith.ServiceClient(base_url=url)
        print(fresh.create_lora_training_client("m").result(30).model_id, flush=True)
        code = 0
    finally:
        os._exit(code)
_, status = os.waitpid(child, 0)
assert status == 0, status
print(training.optim_step(tinsmith.AdamParams()).result(30).metrics)
""")
    assert out == "S:train:0\n{'step:unique': 2.0}\n"
