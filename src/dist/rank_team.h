// A training's ranks as the training loop sees them: one, or several of a Communicator. The first
// rank leads: it alone writes the logs, and what a checkpoint has once.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dist/communicator.h"

namespace quern {

class RankTeam {
 public:
  // group: null for one rank; outlives this.
  explicit RankTeam(Communicator* group) : group_(group) {}

  Communicator* group() const { return group_; }
  bool is_one() const { return group_ == nullptr; }
  int64_t count() const { return is_one() ? 1 : group_->size(); }
  int64_t rank() const { return is_one() ? 0 : group_->rank(); }
  bool leads() const { return rank() == 0; }

  // What `find` returns on the leading rank, the only one to call it. Needs a current Context.
  std::string of_leader(const std::function<std::string()>& find, const char* what) const;
  // Runs `work` on the leading rank; all wait. When it throws, so do they: see on_each.
  void on_leader(const std::function<void()>& work, const char* what) const;
  // What `work` returns on each rank, on every rank. It may take long, and makes no collective.
  // When it throws on a rank, every rank throws: that one its own error, the others one that names
  // it.
  std::vector<std::string> on_each(const std::function<std::string()>& work,
                                   const char* what) const;
  // Waits until every rank has come this far, behind work of the leading one alone: "a sample".
  void wait_for(const char* work) const;
  // Throws when a collective has failed meanwhile, on the Context's stream too: see Communicator.
  void check() const;

 private:
  Communicator* group_;
};

}  // namespace quern
