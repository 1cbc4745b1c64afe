"""Which checkpoint a job goes back to: the latest that is whole, and the one before where that is damaged."""

from __future__ import annotations

from phoenix_core.ondisk import REMEMBERED, OnDisk


def write(disk: OnDisk, boundary: int, *ranks: int) -> None:
    for rank in ranks or (0, 1):
        disk.written(rank, boundary, 2)


def test_a_checkpoint_is_there_once_every_rank_has_written_its_part() -> None:
    disk = OnDisk(0)
    write(disk, 20, 0)
    assert disk.boundary == 0
    write(disk, 20, 1)
    disk.written(None, 40, 2)
    write(disk, 40, 1)
    assert disk.boundary == 20


def test_a_damaged_one_gives_way_to_the_one_before_and_then_to_the_one_that_the_job_began_from() -> None:
    disk = OnDisk(10)
    for boundary in (20, 40):
        write(disk, boundary)
    assert disk.boundary == 40
    disk.refuse(40)
    assert disk.boundary == 20
    disk.refuse(20)
    assert disk.boundary == 10
    disk.refuse(10)
    assert disk.boundary == 0


def test_what_was_refused_counts_again_when_it_has_been_written_again() -> None:
    disk = OnDisk(0)
    for boundary in (20, 40):
        write(disk, boundary)
    disk.refuse(40)
    write(disk, 40, 1)
    assert disk.boundary == 20
    write(disk, 40, 0)
    assert disk.boundary == 40


def test_it_remembers_no_more_than_it_needs() -> None:
    disk = OnDisk(0)
    for boundary in range(1, 100):
        write(disk, boundary)
    for expected in range(99, 99 - REMEMBERED, -1):
        assert disk.boundary == expected
        disk.refuse(expected)
    assert disk.boundary == 0
