#!/usr/bin/env python3
"""Checks a memory.pickle with nothing but Python's standard library.

Usage: check_memory_snapshot.py FILE

Replays the events: an allocation lies in a segment that is held and overlaps no other, a release
matches an allocation, and what is left in the end is what the segments' blocks say, block by block.
Prints one line of JSON (bytes: allocated, reserved, peak; counts: live, events, dropped; the bytes of
live allocations by category), and fails with a message when something does not hold.
"""

import bisect
import json
import pickle
import pickletools
import sys

# The opcodes that unpickle() in PyTorch's MemoryViz.js understands.
VIEWER_OPCODES = {
    "APPENDS", "BINGET", "BININT", "BININT1", "BININT2", "EMPTY_DICT", "EMPTY_LIST", "FRAME", "LONG1",
    "LONG_BINGET", "MARK", "MEMOIZE", "PROTO", "SETITEMS", "SHORT_BINUNICODE", "STOP", "TUPLE2", "APPEND",
    "NEWFALSE", "BINPUT", "BINUNICODE", "EMPTY_TUPLE", "NEWTRUE", "NONE", "BINFLOAT", "TUPLE", "TUPLE1",
    "TUPLE3", "LONG_BINPUT", "LIST", "DICT", "SETITEM"}
ROUNDING = 256


class Bad(Exception):
    pass


def check(condition, *what):
    if not condition:
        raise Bad(" ".join(str(part) for part in what))


def check_opcodes(data):
    for opcode, _, position in pickletools.genops(data):
        check(opcode.name in VIEWER_OPCODES, "the viewer does not know", opcode.name, "at", position)


def check_frames(frames):
    check(isinstance(frames, list), "frames are no list:", frames)
    for frame in frames:
        check(set(frame) == {"filename", "line", "name"}, "a frame has the keys", sorted(frame))
        check(isinstance(frame["filename"], str) and isinstance(frame["name"], str), "frame:", frame)
        check(isinstance(frame["line"], int), "frame:", frame)


class Ranges:
    """Address ranges that do not overlap."""

    def __init__(self, what):
        self.what, self.starts, self.entries = what, [], {}

    def add(self, start, size, value):
        at = bisect.bisect_right(self.starts, start)
        if at > 0:
            before = self.starts[at - 1]
            check(before + self.entries[before][0] <= start, self.what, hex(start), "overlaps", hex(before))
        if at < len(self.starts):
            check(start + size <= self.starts[at], self.what, hex(start), "overlaps", hex(self.starts[at]))
        self.starts.insert(at, start)
        self.entries[start] = (size, value)

    def remove(self, start, size):
        check(start in self.entries, self.what, hex(start), "is released but not there")
        check(self.entries[start][0] == size, self.what, hex(start), "is released with another size")
        del self.starts[bisect.bisect_left(self.starts, start)]
        return self.entries.pop(start)[1]

    def holds(self, start, size):
        at = bisect.bisect_right(self.starts, start) - 1
        return at >= 0 and start + size <= self.starts[at] + self.entries[self.starts[at]][0]


def replay(events):
    segments, blocks, allocated, peak, time, pending = Ranges("segment"), Ranges("block"), 0, 0, 0, None
    for number, event in enumerate(events):
        action, size = event["action"], event["size"]
        check_frames(event["frames"])
        check(event["time_us"] >= time, "event", number, "is earlier than the one before")
        check(event["stream"] == 0, "event", number, "is on stream", event["stream"])
        check((pending is None) or action == "free_completed", "a free_requested is not completed")
        time = event["time_us"]
        padded = max(ROUNDING, -(-size // ROUNDING) * ROUNDING)
        if action == "alloc":
            check(segments.holds(event["addr"], padded), "allocation", number, "lies in no segment")
            blocks.add(event["addr"], padded, event)
            allocated += size
            peak = max(peak, allocated)
        elif action == "free_requested":
            pending = (event["addr"], size)
        elif action == "free_completed":
            check(pending == (event["addr"], size), "a free_completed without its free_requested")
            pending = None
            made = blocks.remove(event["addr"], padded)
            check(made["size"] == size, "block", hex(event["addr"]), "is released with another size")
            check(made["frames"] == event["frames"], "a block is released from another place")
            check(made["category"] == event["category"], "a block changes its category")
            allocated -= size
        elif action == "segment_alloc":
            segments.add(event["addr"], size, event)
        elif action == "segment_free":
            segments.remove(event["addr"], size)
        elif action == "oom":
            check(isinstance(event["device_free"], int), "an oom without device_free")
        else:
            check(action == "snapshot" and number + 1 == len(events), "unknown action", action)
    check(pending is None, "a free_requested is not completed")
    return segments, blocks, allocated, peak


def check_segment(segment, held, blocks):
    address, total = segment["address"], segment["total_size"]
    check(held.entries.get(address, (0,))[0] == total, "segment", hex(address), "is not what the events say")
    active = requested = 0
    at = address
    for block in segment["blocks"]:
        check(block["address"] == at and block["size"] > 0, "block", hex(at), "does not follow the one before")
        check_frames(block["frames"])
        if block["state"] == "active_allocated":
            check(at in blocks.entries, "block", hex(at), "is in use, but no event says so")
            size, event = blocks.entries[at]
            check((size, event["size"]) == (block["size"], block["requested_size"]), "block", hex(at), "has another size")
            check(event["frames"] == block["frames"], "block", hex(at), "is from another place")
            active += block["size"]
            requested += block["requested_size"]
        else:
            check(block["state"] == "inactive" and at not in blocks.entries, "block", hex(at), "is in use")
        at += block["size"]
    check(at == address + total, "the blocks of segment", hex(address), "do not fill it")
    check(segment["allocated_size"] == segment["active_size"] == active, "segment", hex(address), "adds up wrongly")
    check(segment["requested_size"] == requested, "segment", hex(address), "adds up wrongly")
    return requested


def main(path):
    with open(path, "rb") as file:
        data = file.read()
    check_opcodes(data)
    snapshot = pickle.loads(data)
    check(set(snapshot) >= {"segments", "device_traces"}, "the snapshot has the keys", sorted(snapshot))
    check(len(snapshot["device_traces"]) == 1, "more than one device")
    events = snapshot["device_traces"][0]
    held, blocks, allocated, peak = replay(events)
    check(len(snapshot["segments"]) == len(held.entries), "segments are missing")
    requested = sum(check_segment(segment, held, blocks) for segment in snapshot["segments"])
    check(requested == allocated, "blocks hold", requested, "bytes, the events", allocated)
    categories = {}
    for size, event in blocks.entries.values():
        categories[event["category"]] = categories.get(event["category"], 0) + event["size"]
    check(sum(categories.values()) == allocated, "the categories do not add up")
    settings = snapshot["allocator_settings"]
    if settings["events_dropped"] == 0:
        check(peak == settings["peak_allocated"], "the peak is", peak, "by the events and",
              settings["peak_allocated"], "by the allocator")
    check("unknown" in {event.get("category") for event in events}, "no event of category 'unknown'")
    for note in snapshot["external_annotations"]:
        check(note["stage"] in ("START", "END"), "annotation:", note)
    print(json.dumps({
        "allocated": allocated, "reserved": sum(size for size, _ in held.entries.values()), "peak": peak,
        "live": len(blocks.entries), "events": len(events), "dropped": settings["events_dropped"],
        "ooms": sum(event["action"] == "oom" for event in events), "categories": categories}))


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except Bad as problem:
        sys.exit(f"{sys.argv[1]}: {problem}")
