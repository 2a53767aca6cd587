#!/usr/bin/env python3
"""Usage: scripts/same_tensors.py CHECKPOINT CHECKPOINT

Compares the tensors of two checkpoints byte by byte, however many files hold them. Prints what differs; exits with 1."""
import json, os, sys


def tensors(folder):
    """The bytes of each tensor, by the stem of its file and its name."""
    found = {}
    if not os.path.isdir(folder): sys.exit(f"{folder}: is no folder")
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".safetensors"): continue
        with open(os.path.join(folder, name), "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            data = file.read()
        for tensor, entry in header.items():
            if tensor == "__metadata__": continue
            begin, end = entry["data_offsets"]
            found[name.split(".")[0].split("-")[0], tensor] = (entry["dtype"], entry["shape"], data[begin:end])
    if not found: sys.exit(f"{folder}: has no tensors")
    return found


if len(sys.argv) != 3: sys.exit(__doc__)
first, second = map(tensors, sys.argv[1:])
bad = [key for key in sorted(first.keys() | second.keys()) if first.get(key) != second.get(key)]
for stem, name in bad: print(f"{sys.argv[2]}: {stem}: tensor '{name}' differs from that of {sys.argv[1]}")
sys.exit(1 if bad else 0)
