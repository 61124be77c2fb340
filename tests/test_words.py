"""Texts of others before people see them."""

from __future__ import annotations

import json
import unicodedata

import pytest
import structlog
from hypothesis import example, given
from hypothesis import strategies as st
from support.frames import read
from support.strategies import CHARACTERS

from taihu.core.base.errors import RunError
from taihu.core.base.words import one_line, told
from taihu.core.coordination.control.looking import GetStatus
from taihu.core.coordination.control.looking_ways import LOOKING
from taihu.core.process.entry import run_app
from taihu.core.wire.base.log import configure_logs
from taihu.core.wire.frames.headers import At
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.frames.kinds import Farewell
from taihu.core.wire.links.outbox import last_word
from taihu.protos import coordinator_pb2 as pb

HOSTILE = "\x1b]0;owned\x07\x1b[31mred\u202e\r\nerror: all is well\x9b2J\ud800"


def is_harmless(line: str) -> bool:
    """By Unicode's categories: nothing that controls, formats, breaks lines, or is half a character."""
    return all(unicodedata.category(each)[0] != "C" and each not in "\u2028\u2029" for each in line)


@given(st.text(CHARACTERS))
@example(HOSTILE)
def test_a_line_tells_a_terminal_letters_alone(text: str) -> None:
    line = one_line(text)
    assert is_harmless(line)
    assert one_line(line) == line
    if is_harmless(text) and " ".join(text.split()) == text:
        assert line == text


@given(st.text(CHARACTERS, max_size=30), st.integers(1, 300))
def test_what_others_tell_is_bounded(text: str, times: int) -> None:
    assert len(told(text * times)) <= 2000 * 10 + 3
    assert is_harmless(told(text * times))


def test_a_farewell_says_one_line() -> None:
    sender = Sender(7, 1)
    frame = read(last_word(sender, At(0, 0), HOSTILE[:-1]).message(0), sender)
    assert isinstance(frame.header.kind, Farewell)
    assert frame.text == one_line(HOSTILE[:-1])
    assert is_harmless(frame.text)
    assert not read(last_word(sender, At(0, 0)).message(0), sender).text


def test_all_texts_of_a_message_are_lines_that_print() -> None:
    hostile = HOSTILE[:-1]
    message = pb.GetStatusResponse(state=pb.RUN_STATE_RUNNING, servers=3)
    member = message.members.add(member=pb.Member(role=pb.ROLE_WORKER, rank=1))
    agent = message.agents.add(ranks=[1])
    for each in (message, member, member.progress, agent):
        texts = [field.name for field in each.DESCRIPTOR.fields if field.type == field.TYPE_STRING]
        for name in texts:
            setattr(each, name, hostile)
    status = LOOKING[GetStatus].answered.of(message)
    shown = (vars(each) for each in (status, *status.members, status.members[0].progress, *status.agents))
    told = [value for values in shown for value in values.values() if isinstance(value, str)]
    assert told == [one_line(hostile)] * 11
    assert (status.servers, status.members[0].member.rank) == (3, 1)


def test_an_error_on_a_terminal_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(**_: object) -> None:
        raise RunError(HOSTILE)

    with pytest.raises(SystemExit):
        run_app(fail)
    assert capsys.readouterr().err == f"error: {one_line(HOSTILE)}\n"


@pytest.mark.parametrize("form", ["text", "json"])
def test_logs_hold_letters_alone(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        configure_logs(form)  # type: ignore[arg-type]
        structlog.get_logger().warning(HOSTILE, peer=HOSTILE)
    finally:
        structlog.reset_defaults()
        structlog.contextvars.clear_contextvars()
    (line,) = capsys.readouterr().err.splitlines()
    assert is_harmless(line)
    if form == "json":
        assert json.loads(line)["peer"] == one_line(HOSTILE)
