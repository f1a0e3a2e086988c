"""A node's table against a naive model: write-once values, exact pages, pinned bytes that never change."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from common.cache.kvstore_arena import Arena
from common.cache.kvstore_wire import name_of
from common.cache.l3 import HEADER_BYTES, BlockKey
from services.kvstore.leases import LeaseBook
from services.kvstore.limits import Limits
from services.kvstore.memory import Object, Rank
from services.kvstore.objects import Objects

PAGE, NUM_PAGES = 64, 12
NAMES = [name_of(BlockKey(space, bytes([number]))) for space in (b"a", b"b") for number in range(8)]
TTL_S = 10.0


def content(name: bytes, length: int) -> bytes:
    """Equal names mean equal bytes (per length: another length is a damaged object)."""
    return (name * length)[:length]


class StoreMachine(RuleBasedStateMachine):
    """Puts, leases, loads, writes, removals and time in any order."""

    staged = Bundle("staged")
    leases = Bundle("leases")
    writes = Bundle("writes")
    loads = Bundle("loads")

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(NUM_PAGES * PAGE, PAGE)
        limits = Limits(NUM_PAGES * (PAGE + HEADER_BYTES), 6 * PAGE, 9 * PAGE, 1 << 20)
        self.objects = Objects(self.arena, limits)
        self.book = LeaseBook(self.objects, 1, TTL_S, 50)
        self.now_s = 0.0
        self.visible: set[bytes] = set()
        self.log: set[bytes] = set()
        self.held: dict[int, tuple[list[Object], list[int], float]] = {}
        self.pending: set[Object] = set()
        self.loading: dict[Object, object] = {}

    def follow(self) -> None:
        """Keep the model by the events, which therefore must be exact."""
        changes = self.objects.take_changes()
        for came, name in changes.visible:
            assert (name not in self.visible) == came, "events come in order and without repetition"
            (self.visible.add if came else self.visible.remove)(name)
        self.log -= set(changes.off_disk)

    @rule(target=staged, name=st.sampled_from(NAMES), length=st.sampled_from([1, 64, 65, 150]), soft=st.booleans())
    def stage(self, name: bytes, length: int, soft: bool) -> Object | None:
        new = Object(name, length, b"h" * HEADER_BYTES, rank=Rank.SOFT_PINNED if soft else Rank.PLAIN)
        refusal = self.objects.stage(new)
        self.follow()
        if refusal is not None:
            return None
        assert new.run is not None
        self.arena.view(new.run)[:] = content(name, length)
        self.pending.add(new)
        return new

    @rule(new=consumes(staged), good=st.booleans())
    def finish(self, new: Object | None, good: bool) -> None:
        if new is None:
            return
        self.pending.remove(new)
        if good:
            before = self.objects.get(new.name)
            assert self.objects.commit(new) == (before is None or before.length != new.length)
        else:
            self.objects.abandon(new)
        self.follow()

    @rule(target=leases, names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=4))
    def lease(self, names: list[bytes]) -> int | None:
        found = [one for name in names if (one := self.objects.get(name)) is not None and one.run is not None]
        self.objects.touch(found)
        lease = self.book.grant(found, self.now_s, TTL_S)
        if lease is not None:
            generations = [self.arena.generation(one.run) for one in found if one.run is not None]
            self.held[lease] = (found, generations, self.now_s + TTL_S)
        return lease

    @rule(lease=leases)
    def release(self, lease: int | None) -> None:
        if lease is not None:
            self.book.release([lease])
            self.held.pop(lease, None)

    @rule(lease=leases)
    def renew(self, lease: int | None) -> None:
        if lease is None:
            return
        assert self.book.renew(lease, self.now_s, TTL_S) == (lease in self.held)
        if lease in self.held:
            found, generations, _ = self.held[lease]
            self.held[lease] = (found, generations, self.now_s + TTL_S)

    @rule(seconds=st.sampled_from([0.5, 4.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        ended = [lease for lease, (_, _, ends_s) in self.held.items() if ends_s <= self.now_s]
        assert self.book.expire(self.now_s) == len(ended)
        for lease in ended:
            del self.held[lease]

    @rule(name=st.sampled_from(NAMES))
    def remove(self, name: bytes) -> None:
        assert self.objects.remove(name) == (name in self.visible)
        self.follow()

    @rule(name=st.sampled_from(NAMES))
    def pin_softly(self, name: bytes) -> None:
        one = self.objects.get(name)
        if one is not None:
            self.objects.pin_softly(one)

    @rule(target=writes, name=st.sampled_from(NAMES))
    def begin_write(self, name: bytes) -> Object | None:
        one = self.objects.get(name)
        if one is None or one.run is None or one.on_disk or name in {other.name for other in self.pending}:
            return None  # the log is written in order: a name has one write at a time
        self.objects.pin(one)
        self.pending.add(one)
        return one

    @rule(one=consumes(writes), good=st.booleans())
    def end_write(self, one: Object | None, good: bool) -> None:
        if one is None:
            return
        self.pending.remove(one)
        if good:
            self.log.add(one.name)
            self.objects.written(one)
        self.objects.unpin(one)
        self.follow()

    @rule(target=loads, name=st.sampled_from(NAMES))
    def begin_load(self, name: bytes) -> Object | None:
        one = self.objects.get(name)
        if one is None or one.run is not None or one in self.loading:
            return None
        run = self.objects.begin_load(one)
        self.follow()
        if run is None:
            return None
        self.arena.view(run)[:] = content(name, one.length)
        self.loading[one] = run
        return one

    @rule(one=consumes(loads), good=st.booleans())
    def end_load(self, one: Object | None, good: bool) -> None:
        if one is None:
            return
        run = self.loading.pop(one)
        self.objects.end_load(one, run, b"h" * HEADER_BYTES if good else b"", 0)  # type: ignore[arg-type]
        self.follow()

    @rule(name=st.sampled_from(NAMES))
    def drop_from_log(self, name: bytes) -> None:
        one = self.objects.get(name)
        self.log.discard(name)
        used = one is not None and one.used and one.on_disk and one.run is not None
        assert self.objects.dropped(name) is (one if used else None)
        self.follow()

    @invariant()
    def pages_add_up(self) -> None:
        owners = [one for name in self.objects if (one := self.objects.get(name)) is not None]
        owners += [one for found, _, _ in self.held.values() for one in found]
        runs = {id(one.run): one.run for one in [*owners, *self.pending] if one.run is not None}
        runs |= {id(run): run for run in self.loading.values()}  # type: ignore[misc]
        pages = [page for run in runs.values() for page in range(run.first, run.first + run.num_pages)]
        assert len(pages) == len(set(pages)) == NUM_PAGES - self.arena.num_free_pages

    @invariant()
    def the_model_agrees(self) -> None:
        objects = self.objects
        assert set(objects) == self.visible and len(objects) == len(self.visible)
        found = [one for name in objects if (one := objects.get(name)) is not None]
        assert objects.num_bytes == sum(one.num_bytes for one in found)
        on_disk = [one for one in found if one.on_disk]
        assert objects.disk_bytes == sum(one.num_bytes for one in on_disk) and objects.num_on_disk == len(on_disk)
        assert {one.name for one in on_disk} <= self.log, "an object is on disk only if the log has it"
        assert objects.unwritten_bytes == sum(one.num_bytes for one in found if not one.on_disk)
        assert objects.memory.num_bytes <= objects.memory.limit_bytes
        assert all(one.run is not None or one.on_disk for one in found)

    @invariant()
    def bytes_are_those_that_were_put(self) -> None:
        for name in self.objects:
            one = self.objects.get(name)
            if one is not None and one.run is not None:
                assert bytes(self.arena.view(one.run)) == content(one.name, one.length)

    @invariant()
    def leased_bytes_stay(self) -> None:
        for found, generations, _ in self.held.values():
            for one, generation in zip(found, generations, strict=True):
                assert one.run is not None and self.arena.generation(one.run) == generation
                assert bytes(self.arena.view(one.run)) == content(one.name, one.length)


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
