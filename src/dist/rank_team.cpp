#include "dist/rank_team.h"

#include <chrono>
#include <exception>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "dist/host_name.h"
#include "tensor/factory.h"

namespace quern {

namespace {

// Waits for a large checkpoint on a slow disk, or a long sample on a CPU. A rank that dies
// meanwhile is noticed at once.
class PatientGroup {
 public:
  explicit PatientGroup(Communicator& group) : group_(group) {
    group.set_patience(std::chrono::minutes(30));
  }
  ~PatientGroup() { group_.set_patience(std::chrono::milliseconds(0)); }
  PatientGroup(const PatientGroup&) = delete;
  PatientGroup& operator=(const PatientGroup&) = delete;

 private:
  Communicator& group_;
};

kernels::cuda::Stream stream() {
  return Context::current().cuda_stream();
}

// The values of a collective's buffer. Waits for the device, and throws when the collective failed.
template <class T>
std::vector<T> result_of(Communicator& group, const Tensor& shared) {
  std::vector<T> values = shared.to_vector<T>();
  group.check();
  return values;
}

// The numbers of all ranks, by rank.
std::vector<int64_t> gathered(Communicator& group, int64_t own, const char* what) {
  std::vector<int64_t> numbers(static_cast<size_t>(group.size()));
  numbers[static_cast<size_t>(group.rank())] = own;
  const Tensor shared = from_vector(numbers, {group.size()});
  group.gather(shared.raw_data(), RankSlices(group.size(), group.size(), 1), sizeof(int64_t), what,
               stream());
  return result_of<int64_t>(group, shared);
}

// Every rank's result is the root's text, of `size` bytes.
std::string broadcast(Communicator& group, const std::string& own, int root, int64_t size,
                      const char* what) {
  std::vector<uint8_t> bytes(static_cast<size_t>(size));
  if (group.rank() == root) bytes.assign(own.begin(), own.end());
  const Tensor shared = from_vector(bytes, {size});
  group.broadcast(shared.raw_data(), size, root, what, stream());
  const std::vector<uint8_t> received = result_of<uint8_t>(group, shared);
  return {received.begin(), received.end()};
}

// "line 3 is 'a = 1' on rank 0 and 'a = 2' on rank 2"; texts of one line as a whole.
std::string first_difference(const std::string& first, const std::string& other, size_t rank) {
  if (first.find('\n') == std::string::npos && other.find('\n') == std::string::npos) {
    return cat(first, " on rank 0; ", other, " on rank ", rank);
  }
  std::istringstream a(first), b(other);
  const auto next = [](std::istringstream& text) {
    std::string line;
    return std::getline(text, line) ? cat('\'', line, '\'') : std::string("absent");
  };
  for (int number = 1;; ++number) {
    const std::string x = next(a), y = next(b);
    if (x != y) return cat("line ", number, " is ", x, " on rank 0 and ", y, " on rank ", rank);
    if (x == "absent") return "the ends of their last lines differ";
  }
}

}  // namespace

std::string RankTeam::of_leader(const std::function<std::string()>& work, const char* what,
                                WorkLength length) const {
  return on_each([&] { return leads() ? work() : std::string(); }, what, length).front();
}

std::vector<std::string> RankTeam::on_each(const std::function<std::string()>& work,
                                           const char* what, WorkLength length) const {
  if (is_one()) return {work()};
  constexpr char kResult = 'r', kError = 'e';
  std::exception_ptr own_error;
  std::string own, own_reason;
  const auto fail_with = [&](const char* reason) {
    own_error = std::current_exception();
    own_reason = reason;
    own = cat(kError, rank_text(group_->rank(), group_->size()), ": ", what, ": ", reason);
  };
  try {
    own = kResult + work();
  } catch (const std::exception& error) {
    fail_with(error.what());
  } catch (...) {  // a rank that left now would miss the collectives
    fail_with("was ended");
  }
  std::optional<PatientGroup> patient;
  if (length == WorkLength::long_lasting) patient.emplace(*group_);
  const std::vector<int64_t> sizes = gathered(*group_, std::ssize(own), what);
  std::vector<std::string> texts;
  std::string error;
  for (int rank = 0; rank < group_->size(); ++rank) {
    const int64_t size = sizes[static_cast<size_t>(rank)];
    const std::string text =
        size == 1 ? std::string(1, kResult) : broadcast(*group_, own, rank, size, what);
    if (text.front() == kError && error.empty()) error = text.substr(1);
    texts.push_back(text.substr(1));
  }
  if (own_error) {
    group_->set_told(own_reason);
    std::rethrow_exception(own_error);
  }
  if (!error.empty()) throw CommunicationError(error);
  return texts;
}

void RankTeam::on_leader(const std::function<void()>& work, const char* what,
                         WorkLength length) const {
  of_leader(
      [&] {
        work();
        return std::string();
      },
      what, length);
}

void RankTeam::check_alike(const std::string& own, const char* what, WorkLength length) const {
  const std::vector<std::string> texts = on_each([&] { return own; }, what, length);
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    group_->barrier(what);  // no rank ends before the others have received the texts
    throw CommunicationError(cat("ranks 0 and ", rank, " differ in ", what, ": ",
                                 first_difference(texts[0], texts[rank], rank)));
  }
}

void RankTeam::check() const {
  if (!is_one()) group_->check();
}

void RankTeam::watch() const {
  if (!is_one()) group_->watch(stream());
}

}  // namespace quern
