"""Finding sessions, moving them between projects, and their timelines."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from server_support import Api, Serve, batch


async def _open(api: Api, **fields: Any) -> str:
    return (await api.post("create_session", sdk_version="test", **fields))["session_id"]


async def _found(api: Api, **asked: Any) -> list[str]:
    answer = await api.post("sessions/search", **asked)
    return [session["session_id"] for session in answer["sessions"]]


def test_a_search_finds_by_every_field_it_takes(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            one = await _open(
                api, display_name="Größe run A", user_metadata={"team": "red", "n": 1}, project_id="p"
            )
            two = await _open(api, display_name="another run B", user_metadata={"team": "blue"})
            await api.post(f"sessions/{two}/finish", reason={"type": "errored"}, detail="boom")
            everything: list[tuple[dict[str, Any], list[str]]] = [
                ({}, [two, one]),
                ({"session_id": one}, [one]),
                ({"session_id": "nothing"}, []),
                ({"display_name": "RUN GRÖSSE"}, [one]),
                ({"display_name": "run"}, [two, one]),
                ({"display_name": "grösse", "session_id": two}, [two, one]),
                ({"user_metadata": {"team": "red"}}, [one]),
                ({"user_metadata": {"team": "red", "n": "1"}}, [one]),
                ({"user_metadata": {"team": "red", "n": "2"}}, []),
                ({"user_metadata": {'"]; drop': "red"}}, []),
                ({"project_ids": ["p"]}, [one]),
                ({"project_ids": ["default", "p"]}, [two, one]),
                ({"project_ids": []}, []),
                ({"owner": {"type": "accessible"}}, [two, one]),
                ({"owner": {"type": "user", "owner_urns": ["local", "x"]}}, [two, one]),
                ({"owner": {"type": "user", "owner_urns": ["x"]}}, []),
                ({"statuses": [{"type": "active"}]}, [one]),
                ({"statuses": [{"type": "client_finished"}]}, [two]),
                ({"statuses": [{"type": "client_finished", "reasons": ["success"]}]}, []),
                (
                    {
                        "statuses": [
                            {"type": "client_finished", "reasons": ["errored"]},
                            {"type": "active"},
                        ]
                    },
                    [two, one],
                ),
                ({"statuses": [{"type": "failed"}, {"type": "cancelled"}]}, []),
            ]
            for asked, expected in everything:
                assert await _found(api, **asked) == expected, asked
            (summary,) = (await api.post("sessions/search", session_id=two))["sessions"]
            assert summary["status"] == {
                "type": "client_finished",
                "reason": {"type": "errored"},
                "detail": "boom",
            }
            assert (summary["owner"], summary["project_id"]) == ("local", "default")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 201}, "limit"),
        ({"display_name": ""}, "display_name"),
        ({"statuses": []}, "statuses"),
        ({"statuses": [{"type": "asleep"}]}, "statuses"),
        ({"owner": {"type": "user", "owner_urns": []}}, "owner"),
        ({"cursor": {"last_created_at": "2026-01-01T00:00:00", "last_session_id": "x"}}, "cursor"),
        ({"shoe_size": 42}, "shoe_size"),
    ],
)
def test_a_search_that_cannot_be_honoured_names_the_field(
    serve: Serve, asked: dict[str, Any], field: str
) -> None:
    async def main() -> None:
        async with serve() as api:
            refused = await api.http.post("sessions/search", json=asked)
            assert refused.status_code == 422
            assert field in refused.json()["detail"]

    asyncio.run(main())


def test_pages_of_a_search_hold_everything_once(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            made = [await _open(api, user_metadata={"odd": str(at % 2)}) for at in range(9)]
            paged: list[str] = []
            cursor = None
            while True:
                answer = await api.post("sessions/search", limit=2, cursor=cursor, user_metadata={"odd": "0"})
                paged += [session["session_id"] for session in answer["sessions"]]
                if (cursor := answer.get("next_cursor")) is None:
                    break
            assert paged == made[::-2]

    asyncio.run(main())


def test_a_session_moves_into_a_project_with_its_runs(serve: Serve) -> None:
    async def main() -> None:
        async with serve() as api:
            session = await api.session()
            run = await api.run(session)
            await api.do("save_weights", model_id=run, path="kept", seq_id=1)
            moved = await api.http.put(f"sessions/{session}/project", json={"project_id": "new"})
            assert moved.status_code == 200

            async def runs(**query: str) -> list[str]:
                page = (await api.http.get("training_runs", params=query)).json()
                found = [one["training_run_id"] for one in page["training_runs"]]
                assert page["cursor"]["total_count"] == len(found)
                return found

            assert await runs(project_id="new", access_scope="accessible") == [run]
            assert await runs(project_id="default") == []
            (summary,) = (await api.post("sessions/search", project_ids=["new"]))["sessions"]
            assert summary["checkpoints_count"] == 1
            assert summary["checkpoint_storage_bytes"] > 0
            for body in ({}, {"project_id": ""}):
                assert (await api.http.put(f"sessions/{session}/project", json=body)).status_code == 422
            unknown = await api.http.put("sessions/nothing/project", json={"project_id": "x"})
            assert unknown.status_code == 404

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("training_runs?access_scope=everything", "access_scope"),
        ("sessions?limit=many", "limit"),
        ("sessions?limit=1&limit=2", "limit"),
        ("checkpoints?colour=blue", "colour"),
        ("get_server_capabilities?x=1", "x"),
    ],
)
def test_a_query_that_cannot_be_honoured_names_the_parameter(serve: Serve, path: str, field: str) -> None:
    async def main() -> None:
        async with serve() as api:
            refused = await api.http.get(path)
            assert refused.status_code == 400
            assert field in refused.json()["detail"]

    asyncio.run(main())


async def _trace(api: Api, session: str) -> str:
    """The address of a fresh trace."""
    while True:
        answer = (await api.http.get(f"sessions/{session}/trace_export")).json()
        if answer["status"] == "ready":
            return answer["url"]
        assert answer == {"status": "pending"}


def test_a_trace_tells_when_each_operation_was_accepted_begun_and_done(serve: Serve) -> None:
    async def main() -> None:
        async with serve(gap_timeout=3600) as api:
            session = await api.session()
            run = await api.run(session)
            await api.loss(run, 1)
            await api.do("save_weights", model_id=run, path="not/a/name", seq_id=2)
            await api.post("forward_backward", **batch(run, 9))
            url = await _trace(api, session)
            async with httpx.AsyncClient(transport=api.http._transport) as anybody:  # no key, other client
                trace = (await anybody.get(url)).json()
                for wrong in (url[:-1] + "x", url.replace("expires=", "expires=9")):
                    assert (await anybody.get(wrong)).status_code == 403
                assert (await anybody.get(url.partition("?")[0])).status_code == 400
            begun = {event["args"]["seq_id"]: event for event in trace["traceEvents"] if event["ph"] == "b"}
            assert {seq: event["args"]["outcome"] for seq, event in begun.items()} == {
                0: "ok",
                1: "ok",
                2: "user",
                9: "pending",
            }
            told = begun[1]["args"]
            assert told["kind"] == "forward_backward"
            assert told["accepted_at"] <= told["started_at"] <= told["finished_at"]
            tracks = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"]
            assert tracks == [run]
            await api.loss(run, 3)
            newer = (await api.http.get(await _trace(api, session))).json()
            assert len(newer["traceEvents"]) > len(trace["traceEvents"])

    asyncio.run(main())
