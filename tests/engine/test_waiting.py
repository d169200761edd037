"""The rules by which those that wait come next, one by one; `engine.waiting` states them."""

import sys

import pytest

from engine.request import Priority, Sequence
from engine.turns import MOST_PASSES
from engine.waiting import BATCH_ONE_IN, WaitingQueue
from tests.engine.naive_queue import make_sequence

BATCH = Priority.BATCH


def fill(
    queue: WaitingQueue, *names: str, tokens: int = 10, priority: Priority = Priority.INTERACTIVE
) -> None:
    """Adds sequences; a name's letter is the session."""
    for name in names:
        queue.add(make_sequence(name, session=name[0], tokens=tokens, priority=priority))


def drain(queue: WaitingQueue, most: int = 10**6, cost: int | None = None) -> list[str]:
    """Takes at most so many, each at its number of tokens or at `cost`; returns their names."""
    names = []
    while len(names) < most and (sequence := queue.select()):
        queue.take(sequence, cost or sequence.num_tokens)
        names.append(sequence.id)
    return names


def selected(queue: WaitingQueue) -> Sequence:
    sequence = queue.select()
    assert sequence is not None
    return sequence


def take(queue: WaitingQueue, cost: int = 10) -> Sequence:
    sequence = selected(queue)
    queue.take(sequence, cost)
    return sequence


# -- turns between sessions -----------------------------------------------------------------------------


def test_one_session_is_served_in_the_order_of_arrival() -> None:
    queue = WaitingQueue(turn_tokens=10)
    fill(queue, "a1", "a2", "a3")
    assert drain(queue) == ["a1", "a2", "a3"]
    assert queue.select() is None


def test_sessions_take_turns_of_so_many_tokens() -> None:
    queue = WaitingQueue(turn_tokens=20)
    fill(queue, "a1", "a2", "a3", "a4", "b1", "b2", "b3", "b4")
    assert drain(queue) == ["a1", "a2", "b1", "b2", "a3", "a4", "b3", "b4"]


def test_a_session_that_comes_later_waits_for_one_turn_of_each_other() -> None:
    queue = WaitingQueue(turn_tokens=20)
    fill(queue, *(f"a{i}" for i in range(20)), *(f"b{i}" for i in range(20)))
    take(queue)
    fill(queue, "c1")
    assert drain(queue, 4) == ["a1", "b0", "b1", "c1"]


def test_what_exceeds_a_turn_is_missing_in_the_next() -> None:
    queue = WaitingQueue(turn_tokens=20)
    fill(queue, "a1", "a2", "a3", "b1", "b2", "b3", "b4", "b5", "b6")
    take(queue, cost=35)
    # 15 of a's second 20 are paid already.
    assert drain(queue) == ["b1", "b2", "a2", "b3", "b4", "a3", "b5", "b6"]


def test_a_debt_of_several_turns_is_sat_out() -> None:
    queue = WaitingQueue(turn_tokens=10)
    fill(queue, "a1", "a2", *(f"b{i}" for i in range(8)))
    take(queue, cost=45)
    # 35 are owed: a has no turn in three rounds, and 5 in the fourth.
    assert drain(queue, 5) == ["b0", "b1", "b2", "a2", "b3"]


def test_sessions_that_all_owe_are_served_without_delay() -> None:
    queue = WaitingQueue(turn_tokens=1)
    fill(queue, "a1", "b1", "a2", "b2")
    assert drain(queue, cost=10**9) == ["a1", "b1", "a2", "b2"]


def test_whoever_comes_back_joins_at_the_end_with_a_fresh_turn() -> None:
    queue = WaitingQueue(turn_tokens=20)
    fill(queue, "a1", "b1", "b2", "b3")
    assert drain(queue, 1) == ["a1"]  # 10 of a's turn are left, and lost
    fill(queue, "a2", "a3", "a4")
    assert drain(queue) == ["b1", "b2", "a2", "a3", "b3", "a4"]


def test_a_debt_outlives_the_wait_while_the_session_runs() -> None:
    queue = WaitingQueue(turn_tokens=10)
    fill(queue, "a1", *(f"b{i}" for i in range(8)))
    take(queue, cost=45)
    fill(queue, "a2")
    assert drain(queue, 5) == ["b0", "b1", "b2", "b3", "a2"]


def test_a_session_with_nothing_left_is_forgotten_with_its_debt() -> None:
    queue = WaitingQueue(turn_tokens=10)
    fill(queue, "a1", *(f"b{i}" for i in range(8)))
    queue.settle(take(queue, cost=35), 10_000)
    fill(queue, "a2")
    assert drain(queue, 2) == ["b0", "a2"]


def test_what_an_answer_cost_beyond_the_estimate_is_owed() -> None:
    queue = WaitingQueue(turn_tokens=10)
    fill(queue, "a1", "a2", "a3", *(f"b{i}" for i in range(8)))
    queue.settle(take(queue, cost=10), 20)
    # The turn that a was given already stands; after it, two rounds are missing.
    assert drain(queue, 5) == ["b0", "a2", "b1", "b2", "a3"]


def test_what_is_owed_is_paid_once_and_not_from_what_was_left_of_a_turn() -> None:
    queue = WaitingQueue(turn_tokens=10)
    fill(queue, "a1", "a2", *(f"b{i}" for i in range(8)))
    first, _ = take(queue, cost=1), take(queue, cost=1)
    queue.settle(first, 25)
    fill(queue, "a3", "a4", "a5")
    # Two rounds are missing, and half of the turn after them.
    assert drain(queue, 8) == ["b0", "b1", "b2", "a3", "b3", "a4", "b4", "a5"]


def test_what_is_given_back_lowers_a_debt_and_lengthens_no_turn() -> None:
    queue = WaitingQueue(turn_tokens=10)
    fill(queue, *(f"a{i}" for i in range(5)), *(f"b{i}" for i in range(8)))
    queue.settle(take(queue, cost=10), -1000)
    assert drain(queue, 1) == ["b0"]
    assert take(queue, cost=45).id == "a1"
    assert drain(queue, 5) == ["b1", "a2", "b2", "a3", "b3"]


def test_a_turn_has_at_least_one_token() -> None:
    with pytest.raises(ValueError, match="turn_tokens: got 0, allowed: at least 1"):
        WaitingQueue(turn_tokens=0)


# -- inside a session -----------------------------------------------------------------------------------


def test_of_those_that_come_together_the_shortest_is_first() -> None:
    queue = WaitingQueue(turn_tokens=10)
    fill(queue, "a1", tokens=1000)
    fill(queue, "a2", tokens=10)
    assert drain(queue) == ["a2", "a1"]


def test_one_that_has_waited_long_for_its_size_comes_before_a_shorter_one() -> None:
    queue = WaitingQueue(turn_tokens=10)
    fill(queue, "a1", tokens=1000)
    for _ in range(200):
        queue.tick()
    fill(queue, "a2", tokens=10)
    assert drain(queue) == ["a1", "a2"]  # 201 ticks for 1000 tokens, 1 for 10


def test_short_ones_pass_a_long_one_a_bounded_number_of_times() -> None:
    queue = WaitingQueue(turn_tokens=10)
    fill(queue, "a-long", tokens=100_000)
    fill(queue, *(f"a{i}" for i in range(50)), tokens=1)
    assert drain(queue).index("a-long") == MOST_PASSES


def test_a_bounded_number_pass_each_of_several_long_ones() -> None:
    queue = WaitingQueue(turn_tokens=10)
    fill(queue, "a-first", tokens=100_000)
    fill(queue, *(f"a{i}" for i in range(10)), tokens=1)
    assert drain(queue, 8) == [f"a{i}" for i in range(8)]
    fill(queue, "a-second", tokens=100_000)
    fill(queue, *(f"a{i}" for i in range(10, 50)), tokens=1)
    order = drain(queue)
    assert order.index("a-first") == MOST_PASSES - 8
    later = [name for name in order[: order.index("a-second")] if name[1:].isdigit() and int(name[1:]) >= 10]
    assert len(later) == MOST_PASSES


# -- classes --------------------------------------------------------------------------------------------


def test_interactive_comes_before_batch_but_one_in_eight_is_batch() -> None:
    queue = WaitingQueue(turn_tokens=1000)
    fill(queue, *(f"b{i}" for i in range(3)), priority=BATCH)
    fill(queue, *(f"a{i}" for i in range(20)))
    order = drain(queue)
    assert [i for i, name in enumerate(order) if name[0] == "b"] == [7, 15, 22]
    assert order[BATCH_ONE_IN - 1] == "b0"


def test_a_batch_request_that_comes_late_has_not_earned_a_turn_yet() -> None:
    queue = WaitingQueue(turn_tokens=1000)
    fill(queue, *(f"a{i}" for i in range(30)))
    assert len(drain(queue, 10)) == 10
    fill(queue, "b0", priority=BATCH)
    assert drain(queue).index("b0") == BATCH_ONE_IN - 1


def test_a_session_has_an_account_in_each_class() -> None:
    queue = WaitingQueue(turn_tokens=10)
    fill(queue, "a1", tokens=1000)
    fill(queue, "a2", priority=BATCH)
    assert queue.num_of_session("a") == 2
    assert drain(queue, 1) == ["a1"]
    fill(queue, "b1", priority=BATCH)
    assert drain(queue) == ["a2", "b1"]


# -- those that were put back ---------------------------------------------------------------------------


def test_those_put_back_come_first_the_last_of_them_before_the_others() -> None:
    queue = WaitingQueue(turn_tokens=100)
    fill(queue, "a1", "a2", "b1", "b2")
    first, second = take(queue), take(queue)
    queue.put_back(first)
    queue.put_back(second)
    assert drain(queue) == ["a2", "a1", "b1", "b2"]


def test_one_put_back_pays_nothing_more() -> None:
    queue = WaitingQueue(turn_tokens=20)
    fill(queue, "a1", "a2", "a3", "b1")
    queue.put_back(take(queue))
    assert take(queue, cost=10_000).id == "a1"
    assert drain(queue) == ["a2", "b1", "a3"]


def test_one_put_back_can_be_set_aside_and_still_comes_first() -> None:
    queue = WaitingQueue(turn_tokens=100)
    fill(queue, "a1", "b1")
    queue.put_back(take(queue))
    queue.set_aside(selected(queue))
    assert selected(queue).id == "b1"
    queue.return_aside()
    assert selected(queue).id == "a1"


# -- set aside ------------------------------------------------------------------------------------------


def test_whoever_is_set_aside_lets_the_next_pass_and_then_comes_first_again() -> None:
    queue = WaitingQueue(turn_tokens=100)
    fill(queue, "a1", "a2", "a3", "a4")
    queue.set_aside(selected(queue))
    queue.set_aside(selected(queue))
    assert take(queue).id == "a3"
    assert len(queue) == 3
    assert "a1" in queue
    queue.return_aside()
    assert drain(queue) == ["a1", "a2", "a4"]


def test_a_session_keeps_its_turn_while_all_of_it_is_set_aside() -> None:
    queue = WaitingQueue(turn_tokens=20)
    fill(queue, "a1", *(f"b{i}" for i in range(9)))
    queue.set_aside(selected(queue))
    assert drain(queue, 3) == ["b0", "b1", "b2"]
    queue.return_aside()
    assert drain(queue, 2) == ["a1", "b3"]


def test_a_session_that_asks_for_more_while_its_turn_is_set_aside_goes_on_with_that_turn() -> None:
    queue = WaitingQueue(turn_tokens=20)
    fill(queue, "a1", "b1", "b2", "b3", "b4")
    queue.set_aside(selected(queue))
    fill(queue, "a2", "a3", "a4")
    # Its turn is 20 long whatever it is used for: no second one comes of it.
    assert drain(queue, 4) == ["a2", "a3", "b1", "b2"]


def test_nobody_is_selected_while_all_are_set_aside() -> None:
    queue = WaitingQueue(turn_tokens=20)
    fill(queue, "a1")
    queue.set_aside(selected(queue))
    assert queue.select() is None
    assert len(queue) == 1


# -- leaving, and mistakes ------------------------------------------------------------------------------


def test_whoever_is_removed_is_gone_wherever_it_stood() -> None:
    queue = WaitingQueue(turn_tokens=100)
    fill(queue, "a1", "a2", "a3", "b1")
    queue.put_back(put_back := take(queue))
    queue.remove(put_back)
    queue.set_aside(aside := selected(queue))
    queue.remove(aside)
    queue.return_aside()
    queue.remove(selected(queue))
    assert drain(queue) == ["b1"]
    with pytest.raises(KeyError):
        queue.remove(aside)


def test_waiting_ones_are_counted_by_session() -> None:
    queue = WaitingQueue(turn_tokens=100)
    fill(queue, "a1", "a2", "a3", "b1")
    queue.put_back(take(queue))
    queue.take(selected(queue), 1)
    queue.set_aside(selected(queue))
    assert (queue.num_of_session("a"), queue.num_of_session("b"), queue.num_of_session("c")) == (2, 1, 0)


def test_only_the_selected_one_can_be_taken_or_set_aside() -> None:
    queue = WaitingQueue(turn_tokens=100)
    first, second = make_sequence("a1", "a"), make_sequence("b1", "b")
    queue.add(first)
    queue.add(second)
    with pytest.raises(ValueError, match="sequence b1: got no turn, allowed: the selected one, a1"):
        queue.take(second, 1)
    with pytest.raises(ValueError, match="sequence b1: got no turn"):
        queue.set_aside(second)
    with pytest.raises(ValueError, match="cost of sequence a1: got 0, allowed: at least 1"):
        queue.take(first, 0)
    assert drain(queue) == ["a1", "b1"]


def test_nobody_waits_twice() -> None:
    queue = WaitingQueue(turn_tokens=100)
    sequence = make_sequence("a1", "a")
    queue.add(sequence)
    with pytest.raises(ValueError, match="sequence a1: it waits already"):
        queue.add(sequence)
    with pytest.raises(ValueError, match="sequence a1: it waits already"):
        queue.put_back(sequence)
    assert len(queue) == 1


# -- cost -----------------------------------------------------------------------------------------------


def calls_of(act: object, *args: object) -> int:
    """How many calls, of Python's functions and of C's, `act` makes."""
    count = 0

    def profile(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        act(*args)  # type: ignore[operator]
    finally:
        sys.setprofile(None)
    return count


def calls_of_a_day(num_waiting: int) -> int:
    queue = WaitingQueue(turn_tokens=100)
    for i in range(num_waiting):
        queue.add(make_sequence(f"s{i % 10}-{i}", f"s{i % 10}", tokens=8))

    def day() -> None:
        for i in range(8):
            queue.tick()
            queue.add(make_sequence(f"new{i}", f"s{i}", tokens=8))
            for _ in range(3):
                queue.select()
            taken = take(queue)
            if i % 2:
                queue.put_back(taken)
            else:
                queue.settle(taken, 5)
            queue.set_aside(selected(queue))
            queue.return_aside()
            queue.remove(selected(queue))

    return calls_of(day)


def test_nothing_costs_more_when_ten_thousand_wait() -> None:
    assert calls_of_a_day(10_000) <= calls_of_a_day(100)
