#include "dist/rank_team.h"

#include <algorithm>
#include <exception>

#include "base/error.h"
#include "dist/host_name.h"
#include "tensor/factory.h"

namespace quern {

namespace {

// Waits for a large checkpoint on a slow disk, or a long sample on a CPU. A rank that dies
// meanwhile is noticed at once.
class PatientGroup {
 public:
  explicit PatientGroup(Communicator& group) : group_(group), limit_(group.limit()) {
    group.set_limit(std::max<std::chrono::milliseconds>(limit_, std::chrono::minutes(30)));
  }
  ~PatientGroup() { group_.set_limit(limit_); }
  PatientGroup(const PatientGroup&) = delete;
  PatientGroup& operator=(const PatientGroup&) = delete;

 private:
  Communicator& group_;
  const std::chrono::milliseconds limit_;
};

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

std::vector<std::string> RankTeam::on_each(const std::function<std::string()>& work,
                                           const char* what) const {
  if (is_one()) return {work()};
  constexpr char kResult = 'r', kError = 'e';
  std::exception_ptr own_error;
  std::string own;
  try {
    own = kResult + work();
  } catch (const std::exception& error) {
    own_error = std::current_exception();
    own = cat(kError, rank_text(group_->rank(), group_->size()), ": ", error.what());
  }
  const PatientGroup patient(*group_);
  std::vector<std::string> texts;
  std::string error;
  for (int rank = 0; rank < group_->size(); ++rank) {
    const std::string text = broadcast(*group_, own, rank, what);
    if (text.front() == kError && error.empty()) error = text.substr(1);
    texts.push_back(text.substr(1));
  }
  if (own_error) std::rethrow_exception(own_error);
  if (!error.empty()) fail(error);
  return texts;
}

void RankTeam::on_leader(const std::function<void()>& work, const char* what) const {
  on_each(
      [&] {
        if (leads()) work();
        return std::string();
      },
      what);
}

void RankTeam::wait_for(const char* work) const {
  if (is_one()) return;
  const PatientGroup patient(*group_);
  group_->barrier(work);
}

void RankTeam::check() const {
  if (!is_one()) group_->check(Context::current().cuda_stream());
}

}  // namespace quern
