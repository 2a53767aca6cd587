#include "dist/agreement.h"

#include <sstream>
#include <utility>

#include "base/error.h"

namespace quern {

namespace {

// "line 3 is 'a = 1' on rank 0 and 'a = 2' on rank 2"
std::string first_difference(const std::string& first, const std::string& other, int rank) {
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

void check_agreement(Communicator& ranks, Store& store, const std::string& key,
                     const std::string& text) {
  const auto key_of = [&](int rank) { return cat("agreement/", key, '/', rank); };
  store.set(key_of(ranks.rank()), text);
  const std::string first = store.get(key_of(0));
  std::string error;
  for (int rank = 1; rank < ranks.size() && error.empty(); ++rank) {
    const std::string other = store.get(key_of(rank));
    if (other == first) continue;
    error = cat("ranks 0 and ", rank, " differ in their ", key, ": ",
                first_difference(first, other, rank));
  }
  ranks.barrier(key.c_str());  // no rank ends, and with it the store, before the others have read
  if (!error.empty()) throw CommunicationError(error);
}

}  // namespace quern
