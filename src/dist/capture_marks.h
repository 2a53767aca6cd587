// Shows which collective of a captured step a GPU has reached, for the message when it hangs there:
// the stream writes a number to host memory before and behind each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/stream.h"
#include "tensor/cuda_runtime.h"

namespace quern {

class CaptureMarks {
 public:
  using Stream = kernels::cuda::Stream;

  // Enclose the capture of a collective, "exchange of the losses".
  void begin(const std::string& call, Stream stream);
  void end(Stream stream);

  // "exchange of the losses": it runs. "work of the stream behind exchange of the losses": it has
  // ended and the next has not begun. "work of the stream": none has begun, or the driver cannot
  // write.
  std::string running() const;

 private:
  void write(uint32_t number, Stream stream);

  std::vector<std::string> calls_;     // captured so far
  cuda::HostArray<uint32_t> reached_;  // of call i: 2 i + 1 when it begins, 2 i + 2 when it ends
};

}  // namespace quern
