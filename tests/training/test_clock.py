"""Clocks, driven by a fake one."""

import torch

from oelm.training.clock import Clock, StepTimer


class FakeTime:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_parts_add_up_to_the_wall_time() -> None:
    time = FakeTime()
    clock = Clock(time)
    for part, seconds in [("training", 5.0), ("validation", 2.0), ("training", 1.0), ("saving", 0.5)]:
        with clock.part(part):
            time.now += seconds
        time.now += 100  # between the parts nobody counts
    assert clock.seconds == {"startup": 0, "compiling": 0, "training": 6.0, "validation": 2.0, "saving": 0.5}
    assert clock.total == 8.5


def test_a_part_that_fails_is_counted_too() -> None:
    time = FakeTime()
    clock = Clock(time)
    try:
        with clock.part("saving"):
            time.now += 3
            raise OSError
    except OSError:
        pass
    assert clock.seconds["saving"] == 3


def test_a_resumed_run_counts_both_sessions() -> None:
    time = FakeTime()
    first, second = Clock(time), Clock(time)
    with first.part("training"):
        time.now += 5
    first.step_times, first.validations = [1.0, 2.0], 1
    with second.part("startup"):
        time.now += 1
    second.step_times = [3.0]
    second.restore(first.state(), torch.tensor(first.step_times))
    assert second.seconds["training"] == 5
    assert second.total == 6
    assert second.step_times == [1.0, 2.0, 3.0]


def test_stats_have_the_studys_keys_and_right_values() -> None:
    clock = Clock(FakeTime())
    clock.step_times = [float(i) for i in range(1, 102)]
    clock.seconds["validation"], clock.validations = 10.0, 4
    stats = clock.stats()
    assert stats["median_step_time"] == 51
    assert stats["mean_step_time"] == 51
    assert (stats["min_step_time"], stats["max_step_time"]) == (1, 101)
    assert (stats["p95_step_time"], stats["p99_step_time"]) == (96, 100)
    assert (stats["num_steps_measured"], stats["mean_validation_time"], stats["num_validations"]) == (101, 2.5, 4)
    assert stats["total_formatted"] == "10s"


def test_a_step_is_timed_from_the_end_of_the_one_before_but_not_over_a_pause() -> None:
    time = FakeTime()
    timer = StepTimer(torch.device("cpu"), time)
    for seconds in (1.0, 2.0):
        timer.begin()
        time.now += seconds
        timer.end()
        time.now += 0.5  # waiting for data between two steps is part of the next step
    assert timer.collect() == [1.0, 2.5]
    timer.pause()
    time.now += 100
    timer.begin()
    time.now += 3
    timer.end()
    assert timer.collect() == [3.0]
