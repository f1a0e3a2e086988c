"""Who goes, who waits, who is refused: the admission core on a clock of its own."""

from __future__ import annotations

import pytest

from common.base.errors import DeadlineExceeded, Overloaded
from services.router.admission import MIN_COST_TOKENS, Admission
from services.router.seat import AdmissionLimits, Claim, Seat, Stage, Workers

BUSY = Workers(num_prefill=1, num_idle=0)
FOREVER = 1e9


def claim(
    tokens: int = 100, tenant: str = "", priority: int = 0, deadline_s: float = FOREVER, weight: int = 0
) -> Claim:
    return Claim(tenant, weight, priority, tokens, deadline_s)


def go(admission: Admission, now_s: float, workers: Workers = BUSY) -> list[Seat]:
    """Dispatch all that may go."""
    gone = []
    while (seat := admission.next(workers, now_s)) is not None:
        admission.placed(seat)
        gone.append(seat)
    return gone


def run(admission: Admission, seat: Seat, now_s: float) -> None:
    """The first token of a dispatched request, and its end."""
    admission.first_token(seat, now_s)
    admission.leave(seat, now_s)


def backlog(admission: Admission, num_served: int = 10, num_left: int = 10, now_s: float = 0.0) -> float:
    """100 tokens leave every second, one request after another; returns the time, `num_left` requests still wait."""
    admission.arrive(claim(), now_s)
    (seat,) = go(admission, now_s)
    for _ in range(num_left):
        admission.arrive(claim(), now_s)
    for _ in range(num_served):
        now_s += 1.0
        run(admission, seat, now_s)
        if not num_left:
            admission.arrive(claim(), now_s)
        (seat,) = go(admission, now_s)
        if num_left:
            admission.arrive(claim(), now_s)
    return now_s


def one_at_a_time(**limits: float) -> Admission:
    return Admission(AdmissionLimits(max_running_requests=1, **limits))  # type: ignore[arg-type]


def test_two_run_and_the_rest_waits() -> None:
    admission = Admission(AdmissionLimits(max_running_requests=2))
    seats = [admission.arrive(claim(), 0.0) for _ in range(10)]
    running = go(admission, 0.0)
    assert running == seats[:2]
    admission.first_token(running[0], 1.0)
    assert go(admission, 1.0) == [], "a first token ends nothing"
    admission.leave(running[0], 2.0)
    admission.leave(running[0], 2.0)
    assert go(admission, 2.0) == [seats[2]]


def test_what_waits_for_a_first_token_is_bounded_and_one_request_may_exceed_it() -> None:
    admission = Admission(AdmissionLimits(dispatch_min_tokens=1000))
    for tokens in (700, 5000, 50):
        admission.arrive(claim(tokens), 0.0)
    first, second = go(admission, 0.0)
    assert admission.dispatched_tokens == 5700
    admission.first_token(first, 1.0)
    assert go(admission, 1.0) == []
    admission.first_token(second, 2.0)
    assert len(go(admission, 2.0)) == 1


def test_the_bound_follows_the_measured_speed() -> None:
    admission = Admission(AdmissionLimits(dispatch_min_tokens=1000, dispatch_ahead_s=2.0))
    now_s = 0.0
    for _ in range(40):
        admission.arrive(claim(1000), now_s)
        (seat,) = go(admission, now_s)
        now_s += 0.1
        run(admission, seat, now_s)
    assert admission.dispatch_limit_tokens(BUSY) == pytest.approx(20_000, rel=0.05)
    assert Admission(AdmissionLimits()).dispatch_limit_tokens(Workers(3, 0)) == 3 * 2048


def test_a_worker_that_idles_gets_something_whatever_the_bound() -> None:
    admission = Admission(AdmissionLimits(dispatch_min_tokens=100))
    for _ in range(4):
        admission.arrive(claim(500), 0.0)
    assert len(go(admission, 0.0)) == 1
    idle = Workers(num_prefill=2, num_idle=1)
    seat = admission.next(idle, 1.0)
    assert seat is not None
    assert admission.next(idle, 1.0) is None, "that one's worker is not known yet"
    admission.placed(seat)
    assert admission.next(Workers(2, 0), 1.0) is None


def test_seats_that_are_taken_are_not_dispatched_to() -> None:
    admission = Admission(AdmissionLimits())
    seats = [admission.arrive(claim(), 0.0) for _ in range(4)]
    two_left = Workers(num_prefill=1, num_idle=1, num_free_seats=2)
    assert [admission.next(two_left, 0.0) for _ in range(3)] == [seats[0], seats[1], None]
    admission.placed(seats[0])
    admission.placed(seats[1])
    assert admission.next(Workers(1, 0, 0), 1.0) is None
    assert admission.next(Workers(1, 0, 1), 1.0) is seats[2]
    for seat in seats[:3]:
        admission.leave(seat, 2.0)
    assert admission.next(Workers(1, 0, 0), 2.0) is seats[3], "with nothing in flight somebody goes"


def test_a_cached_prompt_costs_something_too() -> None:
    admission = Admission(AdmissionLimits())
    admission.arrive(claim(1), 0.0)
    assert admission.queued_tokens == MIN_COST_TOKENS


@pytest.mark.parametrize(
    ("limits", "reason"),
    [({"max_queued_requests": 3}, "queue_full"), ({"max_queued_tokens": 350}, "queue_full")],
)
def test_a_full_queue_refuses_before_and_after_the_prompt_is_known(limits: dict[str, int], reason: str) -> None:
    admission = one_at_a_time(**limits)
    for _ in range(4):
        admission.check_room("", 0, 0, 0.0)
        admission.arrive(claim(), 0.0)
        go(admission, 0.0)
    with pytest.raises(Overloaded) as caught:
        admission.arrive(claim(), 0.0)
    assert (caught.value.reason, caught.value.retry_after_s) == (reason, 1.0)
    if "max_queued_requests" in limits:
        with pytest.raises(Overloaded):
            admission.check_room("", 0, 0, 0.0)
    assert admission.num_queued == 3


def test_a_stream_that_goes_on_is_not_refused_and_goes_first() -> None:
    admission = one_at_a_time(max_queued_requests=2)
    for _ in range(3):
        admission.arrive(claim(), 0.0)
        go(admission, 0.0)
    resumed = admission.arrive(Claim("", 0, 0, 100, FOREVER, resumes=True), 1.0)
    (running,) = [seat for seat in admission._seats.values() if seat.stage is Stage.DISPATCHED]
    admission.leave(running, 2.0)
    assert go(admission, 2.0) == [resumed] and not admission.take_refused()
    with pytest.raises(DeadlineExceeded):
        admission.arrive(Claim("", 0, 0, 100, 2.0, resumes=True), 2.0)


def test_a_request_larger_than_the_queue_waits_alone() -> None:
    admission = one_at_a_time(max_queued_tokens=50)
    for _ in range(2):
        admission.arrive(claim(1000), 0.0)
        go(admission, 0.0)
    assert admission.num_queued == 1


def test_the_time_to_come_back_is_what_waits_by_the_measured_rate() -> None:
    admission = one_at_a_time(max_queued_requests=30)
    now_s = backlog(admission, num_left=30)
    with pytest.raises(Overloaded) as caught:
        admission.arrive(claim(), now_s)
    assert caught.value.retry_after_s == pytest.approx(30.0, rel=0.15)
    assert one_at_a_time().retry_after_s(5.0) == 1.0


def test_a_queue_that_does_not_move_says_to_come_back_late() -> None:
    admission = one_at_a_time(max_queued_requests=1)
    admission.arrive(claim(), 0.0)
    go(admission, 0.0)
    admission.arrive(claim(), 0.0)
    with pytest.raises(Overloaded) as caught:
        admission.arrive(claim(), 30.0)
    assert caught.value.retry_after_s == pytest.approx(30.0, rel=0.5)


def test_a_wait_that_is_too_long_is_refused_and_the_refusal_ends_with_it() -> None:
    admission = one_at_a_time(max_queue_s=20.0)
    now_s = backlog(admission, num_left=10)
    with pytest.raises(Overloaded) as caught:
        for _ in range(20):
            admission.arrive(claim(), now_s)
    assert caught.value.reason == "queue_too_long"
    with pytest.raises(Overloaded):
        admission.check_room("", 0, 0, now_s)
    admission.arrive(claim(tenant="other"), now_s)  # its share of the rate is untouched
    admission.arrive(claim(priority=50), now_s)
    for seat in list(admission._seats.values()):
        admission.leave(seat, now_s)
    admission.arrive(claim(), now_s)


def test_a_deadline_that_has_passed_or_cannot_be_met_is_told_at_once() -> None:
    admission = one_at_a_time()
    now_s = backlog(admission, num_left=10)
    with pytest.raises(DeadlineExceeded):
        admission.arrive(claim(deadline_s=now_s), now_s)
    with pytest.raises(DeadlineExceeded) as caught:
        admission.arrive(claim(deadline_s=now_s + 5), now_s)
    assert caught.value.reason == "deadline_hopeless"
    admission.arrive(claim(deadline_s=now_s + 20), now_s)


def test_without_a_queue_no_estimate_refuses() -> None:
    """A rate that was measured while a worker stood still must not keep everybody out."""
    admission = one_at_a_time()
    now_s = backlog(admission, num_left=0)
    for seat in list(admission._seats.values()):
        admission.leave(seat, now_s)
    admission.arrive(claim(100_000, deadline_s=now_s + 1), now_s)
    assert len(go(admission, now_s)) == 1


def test_who_became_late_while_waiting_is_refused_instead_of_computed() -> None:
    admission = Admission(AdmissionLimits(max_running_requests=2))
    late = [admission.arrive(claim(deadline_s=8.0), 0.0) for _ in range(3)]
    seats = go(admission, 0.0)
    admission.first_token(seats[0], 5.0)
    admission.leave(seats[0], 7.5)  # 20 tokens a second: the third needs 10 more seconds
    good = admission.arrive(claim(), 7.5)
    assert go(admission, 7.5) == [good]
    (refused,) = admission.take_refused()
    assert refused is late[2] and isinstance(refused.refusal, DeadlineExceeded) and refused.stage is Stage.GONE
    assert admission.take_refused() == []


def test_nothing_in_flight_means_somebody_goes_whatever_the_estimates() -> None:
    admission = one_at_a_time()
    now_s = backlog(admission, num_left=0)
    for seat in list(admission._seats.values()):
        admission.leave(seat, now_s)
    hopeless = admission.arrive(claim(10_000, deadline_s=now_s + 0.1), now_s)
    assert go(admission, now_s, Workers(0, 0)) == [hopeless]


def test_a_flood_leaves_others_their_share_of_queue_and_turns() -> None:
    admission = one_at_a_time(max_queued_requests=10)
    flood = [admission.arrive(claim(tenant="flood"), 0.0) for _ in range(10)]
    (running,) = go(admission, 0.0)
    flood.append(admission.arrive(claim(tenant="flood"), 0.0))
    quiet = admission.arrive(claim(tenant="quiet"), 0.0)
    (pushed,) = admission.take_refused()
    assert pushed is flood[-1] and isinstance(pushed.refusal, Overloaded) and pushed.refusal.reason == "pushed_out"
    order = [running]
    while order[-1] is not quiet:
        run(admission, order[-1], 1.0)
        order += go(admission, 1.0)
    assert len(order) <= 1 + 3 + 1, "about a quantum of the flood goes before it"


def test_priority_goes_first_and_the_low_one_is_not_starved() -> None:
    admission = one_at_a_time(priority_ageing_s=5.0)
    now_s = 0.0
    admission.arrive(claim(), now_s)
    (running,) = go(admission, now_s)
    low = admission.arrive(claim(priority=0), now_s)
    while running is not low:
        admission.arrive(claim(priority=2), now_s)
        now_s += 1.0
        run(admission, running, now_s)
        (running,) = go(admission, now_s)
        assert now_s < 30.0, "starved"
    assert now_s >= 10.0, "two points of priority are ten seconds"


def test_no_room_at_the_workers_is_waited_for_and_tried_carefully() -> None:
    admission = Admission(AdmissionLimits())
    for _ in range(8):
        admission.arrive(claim(), 0.0)
    seats = go(admission, 0.0)
    assert len(seats) == 8
    for seat in seats[:6]:
        admission.first_token(seat, 1.0)
    assert admission.put_back(seats[6], 1.0) and admission.put_back(seats[7], 1.0)
    assert (admission.num_in_flight, admission.num_queued, admission.dispatched_tokens) == (6, 2, 0)
    assert go(admission, 1.0) == [], "six is what they hold"
    admission.leave(seats[0], 2.0)
    assert go(admission, 2.0) == [seats[6]]
    admission.first_token(seats[6], 3.0)
    assert go(admission, 3.0) == []
    admission.leave(seats[1], 4.0)
    assert go(admission, 4.0) == [seats[7]]
    another = admission.arrive(claim(), 4.0)
    assert go(admission, 4.0) == [another], "with nobody waiting no cap"


def test_with_nothing_else_in_flight_no_room_is_an_answer() -> None:
    admission = Admission(AdmissionLimits())
    admission.arrive(claim(), 0.0)
    (seat,) = go(admission, 0.0)
    assert not admission.put_back(seat, 0.0)
    admission.first_token(seat, 0.0)
    assert not admission.put_back(seat, 0.0), "it has a token already"
