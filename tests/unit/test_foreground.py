"""The progress of a trial on a terminal."""

from __future__ import annotations

from chaos.record import Part
from service.foreground import Watch
from tests.records import scenario, undisturbed


def test_the_clock_goes_on_in_the_part_that_follows() -> None:
    watch = Watch(scenario(), visible=False)
    with watch:
        watch.observe(Part.RUN, undisturbed())
        (task,) = watch._progress.tasks
        assert task.finished
        watch.observe(Part.TWIN, undisturbed()[:1])
        assert not task.finished and task.completed == 0 and task.description == "twin"
