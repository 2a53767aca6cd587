// Messages between the ranks over the store when a training fails, since NCCL sends none. A rank
// with an error of its own writes it. A rank whose time limit has passed writes the collective in
// which it waits, and reads the others' entries. A rank without one hangs, is gone, or began to
// wait much later.
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

  // Writes why this rank ends. Where the store ends with it, waits up to `limit` until the others
  // have read it.
  void report_failure(const std::string& reason, std::chrono::milliseconds limit) const noexcept;
  // "rank 1 of 4 on HOST has failed: REASON" of the first rank that has written; empty: none has,
  // or the store has not answered within `limit`. Where the store ends with this rank, it waits up
  // to `of_readers` as well.
  std::string reported_failure(std::chrono::milliseconds limit,
                               std::chrono::milliseconds of_readers) const noexcept;

 private:
  std::string name_of(int rank) const;
  std::string key_of(const char* kind, int rank) const;
  void mark_as_read(std::chrono::milliseconds limit) const noexcept;

  std::shared_ptr<Store> store_;
  int rank_, size_;
  std::string group_;
  std::vector<std::string> hosts_;
};

}  // namespace quern
