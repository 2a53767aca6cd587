// A training's ranks as the training loop sees them: one, or several of a Communicator. The first
// rank leads: it alone writes files.
#pragma once

#include <functional>
#include <string>

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
  // The first rank's text that is not empty, on every rank: an error that one of them has found.
  std::string first_text(const std::string& own, const char* what) const;
  // Waits until every rank has come this far, behind work of the leading one alone: "a checkpoint".
  void wait_for(const char* work) const;
  // Throws when a collective has failed meanwhile, on the Context's stream too: see Communicator.
  void check() const;

 private:
  Communicator* group_;
};

}  // namespace quern
