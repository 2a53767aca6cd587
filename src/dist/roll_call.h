// Finds the rank that keeps the others waiting, which NCCL does not tell. A rank whose time limit
// has passed writes the collective in which it waits to the store, and looks for the entries of the
// others. A rank without an entry hangs, is gone, or began to wait much later.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "dist/store.h"

namespace quern {

class RollCall {
 public:
  static constexpr char kUnknown[] = "another rank is gone, hangs, or called something else";

  // The first rank reads every rank's host and shares the list. `group` names this group in the
  // store's keys.
  RollCall(std::shared_ptr<Store> store, int rank, int size, const std::string& group);

  // Waits up to `limit` for the entries of the other ranks, but at least a tenth of a second for
  // each. Returns a description of the ranks without the same entry: "rank 2 of 4 on HOST does not
  // wait in it, or came later".
  std::string answer(const std::string& call, std::chrono::milliseconds limit) const noexcept;

 private:
  std::string name_of(int rank) const;
  std::string key_of(int rank) const;

  std::shared_ptr<Store> store_;
  int rank_, size_;
  std::string group_;
  std::vector<std::string> hosts_;
};

}  // namespace quern
