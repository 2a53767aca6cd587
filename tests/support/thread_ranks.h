// A function on each rank of a thread group.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "support/thread_group.h"

namespace quern::testing_support {

// The texts that the ranks return, or the messages of the CommunicationErrors that they throw. A
// rank's communicator is destroyed when it ends.
inline std::vector<std::string> run_thread_ranks(
    int size, const ThreadGroupOptions& options,
    const std::function<std::string(Communicator&)>& work) {
  auto ranks = thread_group(size, options);
  std::vector<std::string> texts(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i, rank = std::move(ranks[i])] {
      try {
        texts[i] = work(*rank);
      } catch (const CommunicationError& error) {
        texts[i] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return texts;
}

}  // namespace quern::testing_support
