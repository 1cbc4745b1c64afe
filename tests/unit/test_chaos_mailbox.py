"""Orders to a process: whoever renames one first has it, and what either side reads is whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from chaos.agent.mailbox import Order, Slot, box_of, send

ROOT = Path(__file__).resolve().parents[2]


def test_an_order_is_taken_or_withdrawn_and_never_both(tmp_path: Path) -> None:
    for first, second in (("taken", "withdrawn"), ("withdrawn", "taken")):
        slot = send(tmp_path, Order(act="abort", params={}))
        assert slot is not None
        assert slot.take(first) and not slot.take(second)


def test_where_there_is_no_box_nothing_is_sent(tmp_path: Path) -> None:
    assert send(box_of(tmp_path, 7, 8), Order(act="abort", params={})) is None
    assert list(tmp_path.iterdir()) == []


def test_orders_survive_the_file(tmp_path: Path) -> None:
    order = Order(act="raise", params={"text": "x"}, ttl_s=2.5)
    slot = send(tmp_path, order)
    assert slot is not None
    data = slot.read("order")
    assert data is not None and Order.from_json(data) == order
    assert slot.read("answer") is None


def test_the_byte_of_the_release_is_seen_by_who_has_mapped_it(tmp_path: Path) -> None:
    slot = Slot(tmp_path, "1")
    with slot.page() as page:
        assert page[0] == 0
        slot.release()
        assert page[0] == 1


def test_the_agent_loads_nothing_that_a_script_would_have_to_wait_for() -> None:
    modules = "chaos.agent.listener, chaos.agent.acts, chaos.agent.collectives, chaos.agent.numbers"
    heavy = "{'torch', 'numpy', 'jsonschema', 'yaml', 'pyroute2'}"
    code = f"import sys, {modules}; sys.exit(' '.join({heavy} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
