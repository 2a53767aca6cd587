// The ranks of a training, as the training loop sees them: one, or several of a Communicator. The
// first rank leads: it alone writes the logs and the parts that a checkpoint has once.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dist/communicator.h"

namespace quern {

enum class WorkLength { brief, long_lasting };  // the other ranks wait meanwhile

class RankTeam {
 public:
  // group: null for one rank; outlives this.
  explicit RankTeam(Communicator* group) : group_(group) {}

  Communicator* group() const { return group_; }
  bool is_one() const { return group_ == nullptr; }
  int64_t count() const { return is_one() ? 1 : group_->size(); }
  int64_t rank() const { return is_one() ? 0 : group_->rank(); }
  bool leads() const { return rank() == 0; }

  // Runs `work`, which makes no collective, on every rank, and returns all results on every rank.
  // When it throws on a rank, every rank throws: the failing rank its own error, the others a
  // CommunicationError that names that rank. During long work a rank counts as lost only when it
  // does not answer (Communicator::set_patience). Needs a current Context.
  std::vector<std::string> on_each(const std::function<std::string()>& work, const char* what,
                                   WorkLength length = WorkLength::brief) const;
  // The same, but only the leading rank runs `work`.
  std::string of_leader(const std::function<std::string()>& work, const char* what,
                        WorkLength length = WorkLength::brief) const;
  void on_leader(const std::function<void()>& work, const char* what,
                 WorkLength length = WorkLength::brief) const;
  // Throws the same error on every rank when the ranks' texts differ. It names the first rank that
  // differs from rank 0, and both texts, or the first line that differs.
  void check_alike(const std::string& own, const char* what,
                   WorkLength length = WorkLength::brief) const;
  void check() const;  // Communicator::check()
  void watch() const;  // Communicator::watch() of the Context's stream

 private:
  Communicator* group_;
};

}  // namespace quern
