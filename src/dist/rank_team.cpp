#include "dist/rank_team.h"

#include "tensor/factory.h"

namespace quern {

namespace {

// A large checkpoint on a slow disk, or a long sample on a CPU. A leading rank that dies meanwhile
// is noticed at once.
constexpr std::chrono::milliseconds kLeadersWork = std::chrono::minutes(30);

// Every rank's result is the root's text.
std::string broadcast(Communicator& group, const std::string& own, int root, const char* what) {
  const auto send = [&](const Tensor& bytes) {
    group.broadcast(bytes.raw_data(), bytes.bytes(), root, what, Context::current().cuda_stream());
  };
  const Tensor length = from_vector(std::vector<int64_t>{std::ssize(own)}, {1});
  send(length);
  const auto count = length.to_vector<int64_t>()[0];
  std::vector<uint8_t> bytes(static_cast<size_t>(count));
  if (group.rank() == root) bytes.assign(own.begin(), own.end());
  const Tensor shared = from_vector(bytes, {count});
  send(shared);
  const std::vector<uint8_t> received = shared.to_vector<uint8_t>();
  return {received.begin(), received.end()};
}

}  // namespace

std::string RankTeam::of_leader(const std::function<std::string()>& find, const char* what) const {
  const std::string found = leads() ? find() : "";
  return is_one() ? found : broadcast(*group_, found, 0, what);
}

std::string RankTeam::first_text(const std::string& own, const char* what) const {
  if (is_one()) return own;
  std::string first;
  for (int rank = 0; rank < group_->size(); ++rank) {
    const std::string text = broadcast(*group_, own, rank, what);
    if (first.empty()) first = text;
  }
  return first;
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
