"""What a job's terminal says of failures and recoveries: one line each, from the membership's records."""

from __future__ import annotations

from collections.abc import Mapping

from phoenix_core.protocol import Record


class Narrator:
    """Turns records into sentences; it remembers only when the recovery under way began."""

    def __init__(self) -> None:
        self._broken_at: float | None = None

    def line(self, record: Record, now: float) -> str | None:
        """The sentence for one record at `now` (seconds of a monotonic clock); None where it needs none."""
        fields = record.fields
        match record.kind:
            case "failure_detected" if fields["rank"] is None:
                return f"spare {_who(fields)} failed ({_why(fields)})"
            case "failure_detected":
                self._broken_at = now if self._broken_at is None else self._broken_at
                return f"rank {fields['rank']} ({_who(fields)}) failed ({_why(fields)}); training waits"
            case "coordinator_restarted":
                self._broken_at = now if fields["recovering"] else None
                goes_on = "the broken recovery begins anew" if fields["recovering"] else "the job went on meanwhile"
                return f"the new coordinator found {fields['ranks']} ranks and {fields['spares']} spares; {goes_on}"
            case "straggler_suspected":
                waited, window = float(str(fields["waiting_s"])), float(str(fields["of_s"]))
                return (
                    f"rank {fields['rank']} ({fields['worker']}) is slow: all others waited for it in "
                    f"{100 * waited / window:.0f} % of the last {window:.0f} s"
                )
            case "standstill_noticed":
                return (
                    f"no rank has moved for {float(str(fields['seconds'])):.0f} s, and none waits for another: either "
                    "all compute, read or save, or all hang (a lost mount?); look at one with `py-spy dump`, or end it"
                )
            case "restore_failed":
                return f"rank {fields['rank']} ({fields['worker']}) cannot be restored so: {fields['reason']}"
            case "collective_broken":
                self._broken_at = now if self._broken_at is None else self._broken_at
                return f"a connection of rank {fields['rank']} ({fields['worker']}) broke; all ranks meet anew"
            case "nodes_cut_off" if fields["waits"]:
                return (
                    f"{_names(fields)} cannot be reached on the data network; no spare is left, training waits for it"
                )
            case "spares_given_up":
                return f"no spare is started for now, until a rank needs one: {fields['reason']}"
            case "node_quarantined":
                return f"{fields['node']} gets no worker any more: {fields['reason']}"
            case "spare_assigned":
                return f"{fields['worker']} takes over rank {fields['rank']}"
            case "generation_resumed" if self._broken_at is not None:
                waited_s, self._broken_at = now - self._broken_at, None
                return (
                    f"training goes on from step {fields['step']} after {waited_s:.2f} s "
                    f"(generation {fields['generation']})"
                )
        return None


def _names(fields: Mapping[str, object]) -> str:
    nodes = fields["nodes"]
    assert isinstance(nodes, list)
    return ", ".join(map(str, nodes))


def _who(fields: Mapping[str, object]) -> str:
    return f"{fields['worker']} on {fields['node']}"


def _why(fields: Mapping[str, object]) -> str:
    return str(fields["detail"] or fields["cause"])
