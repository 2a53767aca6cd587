#include "tensor/graph.h"

#include "base/error.h"
#include "tensor/context.h"
#include "tensor/cuda_runtime.h"

namespace quern {

Graph::Graph(const std::function<void()>& work) {
  QUERN_CHECK(Context::current().device().is_cuda(),
              "graph: the current device is the CPU, expected a GPU");
  const Context& context = Context::current();
  context.allocator(context.device())->pin_pool();
  void* stream = context.cuda_stream().handle;
  cuda::begin_capture(stream);
  try {
    work();
  } catch (...) {
    cuda::abandon_capture(stream);
    throw;
  }
  executable_ = cuda::end_capture(stream);
}

Graph::~Graph() {
  cuda::destroy_graph(executable_);
}

void Graph::launch() const {
  cuda::launch_graph(executable_, Context::current().cuda_stream().handle);
}

}  // namespace quern
