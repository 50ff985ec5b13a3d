"""The park book: names, owners, budgets, and readers that outlast a drop."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.mover.parkbook import Entry, ParkBook
from services.mover.parkmemory import ParkPool, PlainBuffer
from tests.unit.mover.test_parkfile import DATA, SMALL, sidecar_of
from worldline.errors import CapacityExhausted, Conflict, Fenced, IntegrityError, NotFound
from worldline.park import ParkKind

MANIFEST = sidecar_of(SMALL, DATA).manifest
LIMITS = {ParkKind.MEMORY: 100, ParkKind.FILE: 50}


@pytest.fixture
def book() -> ParkBook:
    return ParkBook(LIMITS)


def test_the_budget_counts_what_is_being_made(book: ParkBook) -> None:
    book.begin("one", "s", ParkKind.MEMORY, 60, 0.0)
    with pytest.raises(CapacityExhausted) as caught:
        book.begin("two", "s", ParkKind.MEMORY, 41, 0.0)
    assert caught.value.reason == "PARK_FULL"
    book.begin("three", "s", ParkKind.FILE, 50, 0.0)  # the other kind's room is its own
    book.drop("one")
    book.begin("two", "s", ParkKind.MEMORY, 100, 0.0)


def test_a_name_is_taken_once(book: ParkBook) -> None:
    book.begin("one", "s", ParkKind.MEMORY, 1, 0.0)
    with pytest.raises(Conflict) as caught:
        book.begin("one", "s", ParkKind.MEMORY, 1, 0.0)
    assert caught.value.reason == "PARK_EXISTS"


def test_only_its_session_gets_a_whole_copy(book: ParkBook) -> None:
    with pytest.raises(NotFound):
        book.whole("one", "s")
    book.begin("one", "s", ParkKind.MEMORY, 1, 0.0)
    with pytest.raises(Conflict) as caught:
        book.whole("one", "s")
    assert caught.value.reason == "PARK_UNFINISHED"
    book.finish("one", MANIFEST)
    assert book.whole("one", "s").manifest == MANIFEST
    with pytest.raises(Fenced):
        book.whole("one", "another")


def test_a_damaged_copy_answers_with_its_damage(book: ParkBook) -> None:
    damage = IntegrityError("flipped", reason="PARKED_FILE_DAMAGED")
    book.adopt(Entry("one", "", ParkKind.FILE, 9, 0.0, refused=damage))
    with pytest.raises(IntegrityError) as caught:
        book.whole("one", "s")
    assert caught.value is damage
    assert book.drop("one")


def test_a_reader_outlasts_a_drop(book: ParkBook) -> None:
    book.begin("one", "s", ParkKind.MEMORY, 7, 0.0)
    book.finish("one", MANIFEST)
    book.read("one")
    assert not book.drop("one")
    assert book.find("one", "s") is None
    assert book.used_bytes(ParkKind.MEMORY) == 7
    assert book.let_go("one")
    assert book.used_bytes(ParkKind.MEMORY) == 0


def test_a_copy_without_digests_is_never_whole(book: ParkBook) -> None:
    book.begin("one", "s", ParkKind.MEMORY, 1, 0.0)
    with pytest.raises(Exception, match="without digests"):
        book.finish("one", replace(MANIFEST, digests=None))


def test_buffers_are_used_again_and_stay_within_the_limit() -> None:
    pool = ParkPool(3 << 20)
    one = pool.take(1 << 20)
    two = pool.take(2 << 20)
    with pytest.raises(CapacityExhausted):
        pool.take(1)
    pool.give(two)
    pool.give(one)
    assert pool.take(1 << 19) is one, "the smallest that fits"
    assert pool.take(1 << 20) is two
    pool.give(two)
    pool.give(one)
    whole = pool.take(3 << 20)  # both must go for it
    assert pool.held_bytes == 3 << 20
    pool.give(whole)
    pool.close()
    assert pool.held_bytes == 0


def test_a_buffer_is_memory_of_its_own() -> None:
    one, two = PlainBuffer(10), PlainBuffer(10)
    one.view[:] = b"x" * 10
    assert bytes(two.view[:10]) == bytes(10)
    one.close()
    two.close()


class BookMachine(RuleBasedStateMachine):
    """Any sequence keeps the sum of sizes within the limit, and loses no copy that is read."""

    def __init__(self) -> None:
        super().__init__()
        self.book = ParkBook(LIMITS)
        self.readers: dict[str, int] = {}
        self.whole: set[str] = set()

    names = st.sampled_from("abcd")

    @rule(name=names, size=st.integers(0, 60), kind=st.sampled_from(ParkKind))
    def begin(self, name: str, size: int, kind: ParkKind) -> None:
        before = self.book.used_bytes(kind)
        exists = name in {one.park_id for one in self.book.entries()}
        try:
            self.book.begin(name, "s", kind, size, 0.0)
        except Conflict:
            assert exists
        except CapacityExhausted:
            assert before + size > LIMITS[kind]
        else:
            assert not exists

    @rule(name=names)
    def finish(self, name: str) -> None:
        entry = self.book.find(name, "s")
        if entry is not None and entry.manifest is None:
            self.book.finish(name, MANIFEST)

    @rule(name=names)
    def read(self, name: str) -> None:
        try:
            self.book.whole(name, "s")
        except (NotFound, Conflict):
            return
        self.book.read(name)
        self.readers[name] = self.readers.get(name, 0) + 1

    @precondition(lambda self: any(self.readers.values()))
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(n for n, c in self.readers.items() if c)))
        self.readers[name] -= 1
        self.book.let_go(name)

    @rule(name=names)
    def drop(self, name: str) -> None:
        if self.book.find(name, "s") is not None:
            self.book.drop(name)

    @invariant()
    def within_the_limits(self) -> None:
        for kind, limit in LIMITS.items():
            assert 0 <= self.book.used_bytes(kind) <= limit

    @invariant()
    def what_is_read_is_there(self) -> None:
        there = {one.park_id for one in self.book.entries()}
        assert {name for name, count in self.readers.items() if count} <= there


TestBookMachine = BookMachine.TestCase
