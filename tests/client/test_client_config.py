"""Where the client points: argument, then environment, then hosted or embedded."""

from __future__ import annotations

import pytest

import tinsmith
from tinsmith.client.config import HOSTED_URL, ClientConfig, normalize_url


@pytest.mark.parametrize(
    ("arguments", "environ", "url", "key"),
    [
        ({}, {}, None, None),
        ({}, {"TINKER_API_KEY": "tml-e"}, HOSTED_URL, "tml-e"),
        ({"api_key": "tml-a"}, {}, HOSTED_URL, "tml-a"),
        ({"api_key": "tml-a"}, {"TINKER_API_KEY": "tml-e"}, HOSTED_URL, "tml-a"),
        ({}, {"TINKER_BASE_URL": "http://env:1"}, "http://env:1", None),
        ({"base_url": "http://arg:2"}, {"TINKER_BASE_URL": "http://env:1"}, "http://arg:2", None),
        ({"base_url": "http://arg:2"}, {"TINKER_API_KEY": "tml-e"}, "http://arg:2", "tml-e"),
        ({}, {"TINKER_API_KEY": "", "TINKER_BASE_URL": " "}, None, None),
        ({"base_url": "embedded"}, {"TINKER_BASE_URL": "http://env:1"}, None, None),
        ({}, {"TINKER_BASE_URL": "embedded", "TINKER_API_KEY": "tml-e"}, None, "tml-e"),
    ],
)
def test_arguments_go_before_the_environment(arguments, environ, url, key):
    config = ClientConfig.resolve(**arguments, environ=environ)
    assert (config.base_url, config.api_key) == (url, key)


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("https://Host", "https://host"),
        ("HTTPS://h:443/", "https://h"),
        ("http://h:80/services/X/", "http://h/services/X"),
        ("http://h:8080//", "http://h:8080"),
        ("http://[::1]:9", "http://[::1]:9"),
        ("http://u:p@H:9/a", "http://u:p@h:9/a"),
    ],
)
def test_one_spelling_per_service(url, normal):
    assert normalize_url(url) == normal == normalize_url(normal)


@pytest.mark.parametrize("url", ["host:80", "ftp://h", "http://", "http://h?x=1", "http://h#x"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(ValueError, match="base_url"):
        normalize_url(url)


def test_secrets_are_not_shown():
    config = ClientConfig.resolve(
        api_key="tml-topsecret",
        headers={"Authorization": "Bearer hidden"},
        base_url="http://user:password@host",
        environ={"CLOUDFLARE_ACCESS_CLIENT_SECRET": "cfsecret"},
    )
    for secret in ("topsecret", "hidden", "cfsecret", "password"):
        assert secret not in repr(config) + config.place
    assert config.headers == {"CF-Access-Client-Secret": "cfsecret", "Authorization": "Bearer hidden"}


def test_the_rest_of_the_environment():
    environ = {"TINKER_TAGS": "a, b,,", "TINKER_PROJECT_ID": "p", "TINKER_TELEMETRY": "off"}
    config = ClientConfig.resolve(environ=environ)
    assert (config.tags, config.project_id, config.telemetry) == (("a", "b"), "p", False)
    assert ClientConfig.resolve(project_id="q", environ=environ).project_id == "q"
    assert ClientConfig.resolve(environ={}).telemetry is True


def test_a_timeout_may_be_httpx_s():
    assert ClientConfig.resolve(timeout=tinsmith.Timeout(9.0), environ={}).timeout == 9.0
    assert ClientConfig.resolve(timeout=7, environ={}).timeout == 7.0


def test_wrong_kinds_are_refused_early():
    with pytest.raises(TypeError, match="api_key"):
        ClientConfig.resolve(api_key=3)
    with pytest.raises(TypeError, match="headers"):
        ClientConfig.resolve(headers={"a": 1})
    with pytest.raises(ValueError, match="timeout"):
        ClientConfig.resolve(timeout=0)
    with pytest.raises(ValueError, match="max_retries"):
        ClientConfig.resolve(max_retries=-1)


def test_a_change_of_the_environment_afterwards_changes_nothing(monkeypatch):
    monkeypatch.setenv("TINKER_BASE_URL", "http://one")
    config = ClientConfig.resolve()
    monkeypatch.setenv("TINKER_BASE_URL", "http://two")
    assert config.base_url == "http://one"
