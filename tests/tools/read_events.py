#!/usr/bin/env python3
"""Compares a run's TensorBoard event files with its metrics.jsonl.

Usage: read_events.py RUN

Reads the files with TensorBoard's own reader, which stops at a record whose CRC is wrong, and expects
the same steps, tags, values (as FP32, which events hold) and wall times.
"""

import json
import logging
import pathlib
import struct
import sys

from tensorboard.backend.event_processing import event_accumulator, event_file_loader

folder = pathlib.Path(sys.argv[1])
fp32 = lambda x: struct.unpack("f", struct.pack("f", x))[0]
logging.getLogger("tensorboard").setLevel(logging.ERROR)

expected = {}
for line in (folder / "metrics.jsonl").open():
    row = json.loads(line)
    if "loss" not in row and "val_loss" not in row:
        continue  # of a process: its first step, its end
    for tag in row.keys() - {"step", "time"}:
        expected.setdefault(tag, []).append((row["step"], fp32(row[tag]), row["time"]))

accumulator = event_accumulator.EventAccumulator(str(folder), size_guidance={event_accumulator.SCALARS: 0})
accumulator.Reload()
found = {tag: [(e.step, fp32(e.value), e.wall_time) for e in accumulator.Scalars(tag)]
         for tag in accumulator.Tags()["scalars"]}
assert found.keys() == expected.keys(), f"tags: found {sorted(found)}, expected {sorted(expected)}"
for tag, events in expected.items():
    assert found[tag] == events, f"{tag}: found {found[tag]}, expected {events}"

files = sorted(folder.glob("events.out.tfevents.*"))
events = [event for file in files for event in event_file_loader.LegacyEventFileLoader(str(file)).Load()]
versions = [event.file_version for event in events if event.file_version]
assert versions == ["brain.Event:2"] * len(files), versions
print(f"{len(files)} files, {len(events)} events, {len(found)} tags, "
      f"{sum(map(len, found.values()))} values")
