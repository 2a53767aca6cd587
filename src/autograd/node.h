// One recorded op. Private to src/autograd.
#pragma once

#include <memory>
#include <vector>

#include "autograd/tape.h"

namespace quern {

class Node {
 public:
  // The destination of an input's gradient: another node's output, a leaf, or (neither) none.
  struct Edge {
    std::shared_ptr<Node> node;
    int output = 0;
    std::shared_ptr<Leaf> leaf;
    Shape shape;  // the input's; a gradient of another shape means a wrong rule
    DType dtype = DType::f32;
    Device device;
  };

  const char* op = "";
  uint64_t order = 0;  // creation order: the nodes of the inputs have smaller ones
  std::vector<Edge> inputs;
  int outputs = 1;
  BackwardFn backward;  // empty once it has run
  // A loss, or a sum of losses, whose forward already wrote some gradients, for an incoming
  // gradient of 1. Only backward(loss) or one sum may use it.
  bool root_only = false;
  bool summed = false;

  Node() = default;
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
};

}  // namespace quern
