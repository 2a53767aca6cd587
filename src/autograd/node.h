// One recorded op. Private to src/autograd.
#pragma once

#include <memory>
#include <vector>

#include "autograd/tape.h"

namespace quern {

class Node {
 public:
  // Where the gradient of an input goes: to another node's output, to a leaf, or (neither) nowhere.
  struct Edge {
    std::shared_ptr<Node> node;
    int output = 0;
    std::shared_ptr<Leaf> leaf;
    Shape shape;  // of the input: a gradient of another shape is a wrong rule
    DType dtype = DType::f32;
    Device device;
  };

  const char* op = "";
  uint64_t order = 0;  // creation order: an input's node has a smaller one
  std::vector<Edge> inputs;
  int outputs = 1;
  BackwardFn backward;  // empty once it has run
  // A loss, or a sum of losses, whose gradients were partly written in the forward, for an incoming
  // gradient of 1: only backward(loss) may use it, or one sum.
  bool root_only = false;
  bool summed = false;

  Node() = default;
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
};

}  // namespace quern
