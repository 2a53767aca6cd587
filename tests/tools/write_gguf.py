#!/usr/bin/env python3
"""Writes the tensors of an export as a GGUF file and reads them back.

Usage: write_gguf.py EXPORT ARCHITECTURE GGUF     (ARCHITECTURE: llama, qwen2 or qwen3)

Every tensor of the export must have a GGUF name in the `gguf` package's own table, which llama.cpp's
converter uses, and come back with the same shape and values.
"""

import json
import math
import pathlib
import struct
import sys

import gguf
import numpy

folder, architecture, path = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
config = json.loads((folder / "config.json").read_text())
data = (folder / "model.safetensors").read_bytes()
(header_size,) = struct.unpack("<Q", data[:8])
header = json.loads(data[8 : 8 + header_size])
header.pop("__metadata__", None)

arch = getattr(gguf.MODEL_ARCH, architecture.upper())
names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
writer = gguf.GGUFWriter(path, architecture)
writer.add_block_count(config["num_hidden_layers"])
writer.add_context_length(config["max_position_embeddings"])
expected = {}
for name, entry in header.items():
    mapped = names.get_name(name, try_suffixes=(".weight", ".bias"))
    if mapped is None:
        sys.exit(f"no GGUF name for {name}")
    if entry["dtype"] != "F32":
        sys.exit(f"{name} is {entry['dtype']}, expected F32")
    begin = 8 + header_size + entry["data_offsets"][0]
    values = numpy.frombuffer(data, "<f4", math.prod(entry["shape"]), begin).reshape(entry["shape"])
    expected[mapped] = values
    writer.add_tensor(mapped, values)
if len(expected) != len(header):
    sys.exit(f"{len(header)} tensors have {len(expected)} GGUF names")
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()

read = gguf.GGUFReader(path)
if len(read.tensors) != len(expected):
    sys.exit(f"the file has {len(read.tensors)} tensors, expected {len(expected)}")
for tensor in read.tensors:
    values = expected[tensor.name]
    # GGUF counts dimensions from the innermost one.
    if [int(n) for n in tensor.shape][::-1] != list(values.shape):
        sys.exit(f"{tensor.name} has shape {tensor.shape}, expected {values.shape} reversed")
    if not numpy.array_equal(numpy.asarray(tensor.data).reshape(values.shape), values):
        sys.exit(f"{tensor.name} has other values")
print(f"{architecture}: {len(expected)} tensors")
