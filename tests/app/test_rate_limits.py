"""What a session may still have of the queue, and when to come again, as headers that SDKs read."""

from __future__ import annotations

import pytest

from app.api.http import error_response, rate_headers
from app.protocol.errors import ApiError, queue_full
from engine.places import QueuePlaces, Room
from engine.request import QueueFull


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
