"""What a session may still have of the queue, and when to come again, as headers that SDKs read."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from app.api.http import error_response, rate_headers
from app.protocol.errors import ApiError, queue_full
from engine.places import QueuePlaces, Room
from engine.request import QueueFull
from tests.app.harness import eventually, running


def test_a_session_is_told_its_limit_and_what_is_left_of_it() -> None:
    places = QueuePlaces(places=10, per_session=4)
    assert places.room("a", 0.0) == Room(4, 4, 0.0)
    places.take("a", 3, 0.0)
    assert places.room("a", 0.0)[:2] == (4, 1)
    assert places.room("b", 0.0) == Room(4, 4, 0.0)
    assert places.of_sessions() == {"a": 3}, "who only asks takes nothing, not even memory"


def test_what_is_left_is_never_more_than_the_whole_queue_has() -> None:
    places = QueuePlaces(places=5, per_session=4)
    places.take("a", 4, 0.0)
    assert places.room("b", 0.0)[:2] == (4, 1)
    places.take("b", 1, 0.0)
    assert [places.room(session, 0.0).left for session in "abc"] == [0, 0, 0]
    assert QueuePlaces(places=3, per_session=4).room("a", 0.0).limit == 3


def test_places_are_free_again_in_what_the_recent_rate_says() -> None:
    """One place every two seconds, and another session that gets its turns in between."""
    places = QueuePlaces(places=100, per_session=50)
    places.take("a", 10, 0.0)
    places.take("b", 30, 0.0)
    for second in (0.0, 2.0, 4.0):
        places.free("a", second)
    assert places.room("a", 4.0).free_in == pytest.approx(7 * 2 * 2.0)
    assert places.room("b", 4.0).free_in == pytest.approx(37 * 2.0), "all that wait are 37"


def test_times_in_which_nobody_waited_make_nobody_s_wait() -> None:
    """One request a minute, each of which waits for half a second: then many at once."""
    places = QueuePlaces(places=4, per_session=4)
    for minute in range(0, 600, 60):
        places.take("a", 1, minute)
        places.free("a", minute + 0.5)
    places.take("b", 4, 3600.0)
    assert places.room("b", 3600.0).free_in == pytest.approx(4 * 0.5)
    with pytest.raises(QueueFull) as full:
        places.take("a", 2, 3600.0)
    assert full.value.retry_after == pytest.approx(2 * 0.5)
    assert places.room("b", 3610.0).free_in == pytest.approx(4 * 10.0), "nothing became free for ten seconds"


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.0, "0s"),
        (0.0001, "1ms"),
        (0.02, "20ms"),
        (1.0, "1s"),
        (1.5, "1.5s"),
        (59.9999, "1m0s"),
        (360.0, "6m0s"),
    ],
)
def test_times_are_told_as_openai_tells_them(seconds: float, told: str) -> None:
    headers = rate_headers(Room(8, 3, seconds))
    assert headers == {
        "x-ratelimit-limit-requests": "8",
        "x-ratelimit-remaining-requests": "3",
        "x-ratelimit-reset-requests": told,
    }


@pytest.mark.parametrize(("seconds", "ms"), [(0.0, "1"), (0.0204, "21"), (1.2, "1200")])
def test_who_is_refused_is_told_when_to_come_to_the_millisecond_and_never_too_early(
    seconds: float, ms: str
) -> None:
    headers = error_response(queue_full(QueueFull(3, 3, of_session=True, retry_after=seconds))).headers
    assert headers["retry-after-ms"] == ms
    assert int(headers["retry-after"]) * 1000 >= int(ms)


def test_where_no_time_helps_none_is_told() -> None:
    headers = error_response(ApiError(400, "no", code="invalid_value")).headers
    assert "retry-after" not in headers
    assert "retry-after-ms" not in headers


# -- over HTTP -------------------------------------------------------------------------------------------

REQUESTS = (
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}),
    ("/v1/completions", {"prompt": "x", "max_tokens": 2}),
)


def told(response: httpx.Response) -> tuple[str, ...]:
    return tuple(response.headers[f"x-ratelimit-{what}-requests"] for what in ("limit", "remaining", "reset"))


async def test_every_answer_says_what_its_session_may_still_have() -> None:
    one, two = {"authorization": "Bearer one"}, {"authorization": "Bearer two"}
    engine = {"max_queue_per_session": 4, "max_queue": 5}
    async with running(max_num_seqs=1, engine=engine) as server, server.http() as http:
        for path, body in REQUESTS:
            for stream in (False, True):
                response = await http.post(path, json=body | {"stream": stream}, headers=one)
                if stream:  # told when it had its place in the queue, or had just left it
                    assert told(response)[:2] in (("4", "3"), ("4", "4")), path
                else:
                    assert told(response) == ("4", "4", "0s"), path
                assert response.headers["x-should-retry"] == "false"
                assert int(response.headers["openai-processing-ms"]) >= 0
        server.gate.close()
        path, body = REQUESTS[0]
        long = body | {"max_tokens": 100}
        running_one = asyncio.create_task(http.post(path, json=long, headers=two))
        await eventually(lambda: server.stats().num_running == 1)
        waiting = [asyncio.create_task(http.post(path, json=long, headers=one)) for _ in range(2)]
        await eventually(lambda: server.stats().num_waiting == 2)
        async with http.stream("POST", path, json=long | {"stream": True}, headers=one) as streamed:
            limit, remaining, reset = told(streamed)
            assert (limit, remaining) == ("4", "1")
            assert reset != "0s"
            refused = await http.post(path, json=long | {"n": 2}, headers=one)
            others = await http.post(path, json=long | {"n": 3}, headers=two)
            server.gate.open()
        assert [(await each).status_code for each in (running_one, *waiting)] == [200] * 3
    assert (refused.status_code, told(refused)[:2]) == (429, ("4", "1"))
    assert (others.status_code, told(others)[:2]) == (503, ("4", "2")), "two places are left for all"
    for response in (refused, others):
        assert int(response.headers["retry-after-ms"]) <= 1000 * int(response.headers["retry-after"])
        assert response.headers["x-should-retry"] == "true"


async def test_pages_of_other_sites_may_read_these_headers_where_they_are_allowed() -> None:
    origin = "https://chat.example.org"
    async with running(allowed_origins=(origin,)) as server, server.http() as http:
        response = await http.post(REQUESTS[1][0], json=REQUESTS[1][1], headers={"origin": origin})
    exposed = {name.strip() for name in response.headers["access-control-expose-headers"].split(",")}
    assert {name for name in response.headers if name.startswith("x-") or name == "retry-after"} <= exposed
