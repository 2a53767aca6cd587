#include "dist/rank_team.h"

#include "tensor/factory.h"

namespace quern {

namespace {

// A large checkpoint on a slow disk, or a long sample on a CPU. A leading rank that dies meanwhile
// is noticed at once.
constexpr std::chrono::milliseconds kLeadersWork = std::chrono::minutes(30);

// bytes (on the current device) = those of the leading rank.
void broadcast(Communicator& group, const Tensor& bytes, const char* what) {
  group.broadcast(bytes.raw_data(), bytes.bytes(), 0, what, Context::current().cuda_stream());
}

}  // namespace

std::string RankTeam::of_leader(const std::function<std::string()>& find, const char* what) const {
  const std::string found = leads() ? find() : "";
  if (is_one()) return found;
  const Tensor length = from_vector(std::vector<int64_t>{std::ssize(found)}, {1});
  broadcast(*group_, length, what);
  const auto count = length.to_vector<int64_t>()[0];
  std::vector<uint8_t> bytes(static_cast<size_t>(count));
  if (leads()) bytes.assign(found.begin(), found.end());
  const Tensor shared = from_vector(bytes, {count});
  broadcast(*group_, shared, what);
  const std::vector<uint8_t> received = shared.to_vector<uint8_t>();
  return {received.begin(), received.end()};
}

void RankTeam::wait_for(const char* work) const {
  if (is_one()) return;
  const std::chrono::milliseconds limit = group_->limit();
  group_->set_limit(std::max(limit, kLeadersWork));
  group_->barrier(work);
  group_->set_limit(limit);
}

void RankTeam::check() const {
  if (!is_one()) group_->check(Context::current().cuda_stream());
}

}  // namespace quern
