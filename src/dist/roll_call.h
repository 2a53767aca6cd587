// Which rank keeps the others waiting: NCCL does not say. A rank whose time is over tells the store
// in which collective it waits, and looks for the others. One without an entry hangs, is gone, or
// began to wait much later.
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

  // The first rank reads every rank's host and shares the list. `group` tells this group from
  // others that had the same store.
  RollCall(std::shared_ptr<Store> store, int rank, int size, const std::string& group);

  // Waits up to `limit` for the ranks that wait in some collective too, and a tenth of a second for
  // each that does not. Returns what distinguishes the others: "rank 2 of 4 on HOST does not wait
  // in it, or came later".
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
