#include "dist/capture_marks.h"

#include "base/error.h"
#include "dist/collective_watch.h"

namespace quern {

void CaptureMarks::begin(const std::string& call, Stream stream) {
  if (!reached_) {
    const bool pinned = true;
    reached_ = cuda::host_array<uint32_t>(1, pinned);
    reached_[0] = 0;
  }
  calls_.push_back(call);
  write(static_cast<uint32_t>(2 * calls_.size() - 1), stream);
}

void CaptureMarks::end(Stream stream) {
  write(static_cast<uint32_t>(2 * calls_.size()), stream);
}

void CaptureMarks::write(uint32_t number, Stream stream) {
  cuda::write_number(reached_.get(), number, stream);
}

std::string CaptureMarks::running() const {
  const std::string piece = CollectiveWatch::kPiece;
  const uint32_t reached = reached_ ? *static_cast<const volatile uint32_t*>(reached_.get()) : 0;
  if (reached == 0) return piece;
  const std::string& call = calls_[(reached - 1) / 2];
  return reached % 2 == 1 ? call : cat(piece, " behind ", call);
}

}  // namespace quern
