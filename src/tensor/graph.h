// A captured sequence of device work (a CUDA graph), recorded once and launched as a whole. One
// launch costs the host a fraction of the separate kernel launches.
#pragma once

#include <functional>

#include "tensor/cuda_runtime.h"

namespace quern {

class Graph {
 public:
  // Records the work that `work` enqueues on the current Context's stream, without running it. The
  // graph keeps addresses: `work` must allocate from a pool that nothing else uses while the graph
  // lives (PoolScope). It must not wait for the device. Throws what `work` throws.
  explicit Graph(const std::function<void()>& work);

  void launch() const;  // on the current Context's stream

 private:
  cuda::ExecutableGraph executable_;
};

}  // namespace quern
