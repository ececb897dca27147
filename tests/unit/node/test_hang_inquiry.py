"""How far the nodes of a detached run are that record what they know of a hang."""

from __future__ import annotations

from dslaunch.node.hang_inquiry import DIAL_TIMEOUT, RECORD_TIMEOUT, HangInquiry

HOSTS = ("node1", "node2")


def test_the_nodes_connect_to_each_other_when_all_have_recorded() -> None:
    inquiry = HangInquiry(now=0.0)
    inquiry.recorded("node2", 46001)
    assert not inquiry.is_finished(HOSTS, now=1.0)
    inquiry.recorded("node1", 46000)
    assert inquiry.is_finished(HOSTS, now=1.0)
    assert inquiry.begin_dialing(HOSTS, now=1.0) == [46000, 46001]
    assert not inquiry.is_finished(HOSTS, now=2.0)
    inquiry.dialed("node1")
    inquiry.dialed("node2")
    assert inquiry.is_finished(HOSTS, now=2.0)


def test_a_node_that_has_ended_is_not_waited_for() -> None:
    inquiry = HangInquiry(now=0.0)
    inquiry.recorded("node2", 46000)
    assert inquiry.is_finished({"node2"}, now=1.0)


def test_a_node_that_does_not_answer_is_waited_for_no_longer_than_its_timeout() -> None:
    inquiry = HangInquiry(now=0.0)
    inquiry.recorded("node1", 46000)
    assert not inquiry.is_finished(HOSTS, now=RECORD_TIMEOUT - 1)
    assert inquiry.is_finished(HOSTS, now=RECORD_TIMEOUT + 1)
    began = RECORD_TIMEOUT + 1
    assert inquiry.begin_dialing(HOSTS, now=began) == [46000, 0]
    assert not inquiry.is_finished(HOSTS, now=began + DIAL_TIMEOUT - 1)
    assert inquiry.is_finished(HOSTS, now=began + DIAL_TIMEOUT + 1)
