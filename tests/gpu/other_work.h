// Kernels of random size and length on a stream of their own, as long as this lives: they take
// multiprocessors and bandwidth away from what a test repeats meanwhile.
#pragma once

#include <atomic>
#include <thread>

namespace quern::test {

class OtherWork {
 public:
  OtherWork();
  ~OtherWork();
  OtherWork(const OtherWork&) = delete;
  OtherWork& operator=(const OtherWork&) = delete;

 private:
  void run();

  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace quern::test
