// A captured sequence of device work (a CUDA graph): recorded once, then launched as one, at a
// fraction of the host's cost of launching each kernel.
#pragma once

#include <functional>

#include "tensor/cuda_runtime.h"

namespace quern {

class Graph {
 public:
  // Records what `work` puts on the current Context's stream; nothing of it runs. The addresses are
  // recorded too: memory that `work` allocates must come from a pool that nothing else uses while
  // the graph lives (PoolScope), and `work` may not wait for the device. Throws what `work` throws.
  explicit Graph(const std::function<void()>& work);

  void launch() const;  // on the current Context's stream

 private:
  cuda::ExecutableGraph executable_;
};

}  // namespace quern
