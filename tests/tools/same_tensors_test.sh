#!/usr/bin/env bash
# scripts/same_tensors.py compares checkpoints of one file and of several.
set -euo pipefail
# shellcheck source=tests/tools/lib.sh
source "$(dirname "$0")/lib.sh"

# write FILE NAME=BYTES ...: a safetensors file of u8 tensors.
write() {
  mkdir -p "$(dirname "$1")"
  python3 - "$@" <<'PYTHON'
import json, sys
header, data = {}, b""
for item in sys.argv[2:]:
    name, value = item.split("=")
    header[name] = {"dtype": "U8", "shape": [len(value)], "data_offsets": [len(data), len(data) + len(value)]}
    data += value.encode()
text = json.dumps(header).encode()
open(sys.argv[1], "wb").write(len(text).to_bytes(8, "little") + text + data)
PYTHON
}
same() { "$root/scripts/same_tensors.py" "$@"; }

write "$scratch/one/model.safetensors" a=123 b=4567
write "$scratch/two/model-00001-of-00002.safetensors" a=123
write "$scratch/two/model-00002-of-00002.safetensors" b=4567
write "$scratch/other/model.safetensors" a=123 b=4568
write "$scratch/fewer/model.safetensors" a=123
write "$scratch/moments/optimizer.safetensors" a=123 b=4567
expect 'one file and two' 0 '' same "$scratch/one" "$scratch/two"
expect 'another value' 1 "model: tensor 'b' differs" same "$scratch/one" "$scratch/other"
expect 'a missing tensor' 1 "model: tensor 'b' differs" same "$scratch/two" "$scratch/fewer"
expect 'the other kind of file' 1 "optimizer: tensor 'a' differs" same "$scratch/one" "$scratch/moments"
expect 'no folder' 1 'none: is no folder' same "$scratch/one" "$scratch/none"
expect 'one argument' 1 'Usage:' same "$scratch/one"
exit $((failures > 0))
