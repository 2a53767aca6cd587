#include "tensor/graph.h"

#include "base/error.h"
#include "tensor/context.h"

namespace quern {

Graph::Graph(const std::function<void()>& work) {
  QUERN_CHECK(Context::current().device().is_cuda(),
              "graph: the current device is the CPU, expected a GPU");
  const Context& context = Context::current();
  Allocator& allocator = *context.allocator();
  allocator.pin_pool();
  allocator.wait_for_uses();
  const cuda::Stream stream = context.cuda_stream();
  cuda::begin_capture(stream);
  try {
    work();
    allocator.wait_for_uses();  // other streams join the capture
  } catch (...) {
    cuda::abandon_capture(stream);
    cuda::synchronize_device();
    allocator.forget_uses();
    throw;
  }
  executable_ = cuda::end_capture(stream);
}

void Graph::launch() const {
  const Context& context = Context::current();
  context.allocator()->wait_for_uses();
  cuda::launch(executable_, context.cuda_stream());
}

}  // namespace quern
