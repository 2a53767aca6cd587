#include "autograd/tape.h"

#include <map>
#include <unordered_map>
#include <utility>

#include "autograd/node.h"
#include "base/error.h"
#include "kernels/copy.h"
#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern {

// Releases a long chain of nodes without recursion, which could overflow the stack: collects the
// links and drops them one by one.
Node::~Node() {
  std::vector<std::shared_ptr<Node>> chain;
  const auto detach_inputs = [&chain](Node& node) {
    for (Edge& edge : node.inputs) {
      if (edge.node) chain.push_back(std::move(edge.node));
    }
  };
  detach_inputs(*this);
  while (!chain.empty()) {
    const std::shared_ptr<Node> node = std::move(chain.back());
    chain.pop_back();
    if (node.use_count() == 1) detach_inputs(*node);
  }
}

namespace {

// into += grad. Writes in place only if `into` is the sole owner of its memory.
Tensor sum(const Tensor& into, const Tensor& strided_grad) {
  Tensor out = into.is_sole_owner() && into.is_contiguous() ? into : into.clone("gradient");
  const Tensor grad = strided_grad.contiguous();
  visit_pointwise("accumulate", out, [&]<class T>(std::type_identity<T>, auto stream) {
    accumulate(out.data<T>(), grad.data<T>(), out.numel(), true, stream);
  });
  return out;
}

// leaf.grad = grad, or += when `add`. The buffer may have another dtype.
void write_buffer(const Leaf& leaf, const Tensor& grad, bool add) {
  on_device(grad.device(), [&](auto stream) {
    const int64_t n = grad.numel();
    const DType to = leaf.grad.dtype(), from = grad.dtype();
    if (to == DType::f32 && from == DType::f32) {
      return accumulate(leaf.grad.data<float>(), grad.data<float>(), n, add, stream);
    }
    if (to == DType::f32 && from == DType::bf16) {
      return accumulate(leaf.grad.data<float>(), grad.data<bfloat16>(), n, add, stream);
    }
    if constexpr (detail::kHasDouble<decltype(stream)>) {
      if (to == DType::f64 && from == DType::f64) {
        return accumulate(leaf.grad.data<double>(), grad.data<double>(), n, add, stream);
      }
    }
    fail(cat("gradient of ", leaf.name, ": cannot add ", from, " to a buffer of ", to));
  });
}

void show_gradients(const Node& node, const std::vector<Tensor>& grads) {
  auto* const observer = Context::current().observer<GradientObserver>();
  if (!observer) return;
  for (int i = 0; i < node.outputs; ++i) {
    const Tensor& grad = grads[static_cast<size_t>(i)];
    if (grad.defined()) observer->on_gradient(node.order, i, node.outputs, grad);
  }
}

void show_inputs(const char* op, const std::vector<Variable>& inputs, uint64_t node) {
  std::vector<Shape> shapes;
  for (const Variable& input : inputs) shapes.push_back(input.shape());
  Context::current().observer<InputObserver>()->on_inputs(op, node, shapes);
}

void add_to_leaf(Leaf& leaf, const Tensor& grad) {
  if (leaf.has_buffer) {
    write_buffer(leaf, grad, !leaf.fresh);
  } else {
    leaf.grad = leaf.fresh ? grad : sum(leaf.grad, grad);
  }
  leaf.fresh = false;
}

}  // namespace

void Leaf::zero() {
  fresh = true;
  ++zeroed;
  owed = 0;
  if (!has_buffer) grad = Tensor();
}

// The gradients still to propagate, latest node first, and the number of gradients that each leaf
// still expects.
class Pending {
 public:
  struct Entry {
    std::shared_ptr<Node> node;
    std::vector<Tensor> grads;  // one per output
  };

  void add(const std::shared_ptr<Node>& node, int output, const Tensor& grad) {
    Entry& entry = entries_[node->order];
    if (!entry.node) {
      entry.node = node;
      entry.grads.resize(static_cast<size_t>(node->outputs));
    }
    QUERN_CHECK(entry.node == node, "backward: ", node->op, " and ", entry.node->op,
                " ran under two Contexts, expected one");
    Tensor& slot = entry.grads[static_cast<size_t>(output)];
    slot = slot.defined() ? sum(std::exchange(slot, {}), grad) : grad;
  }

  bool empty() const { return entries_.empty(); }

  Entry pop_latest() {
    const auto last = std::prev(entries_.end());
    Entry entry = std::move(last->second);
    entries_.erase(last);
    return entry;
  }

  // Counts the edges into each leaf that is reachable from the pending nodes.
  void count_leaves() {
    std::vector<Node*> stack;
    std::unordered_map<Node*, bool> seen;
    const auto visit_node = [&](Node* node) {
      if (node && !std::exchange(seen[node], true)) stack.push_back(node);
    };
    for (const auto& [order, entry] : entries_) visit_node(entry.node.get());
    while (!stack.empty()) {
      const Node* node = stack.back();
      stack.pop_back();
      for (const Node::Edge& edge : node->inputs) {
        visit_node(edge.node.get());
        if (edge.leaf && ++expected_[edge.leaf.get()] == 1) leaves_.push_back(edge.leaf.get());
      }
    }
  }

  // One edge into the leaf is done, with or without a gradient.
  void settle(Leaf& leaf) {
    if (--expected_[&leaf] == 0 && leaf.on_ready) leaf.on_ready(leaf);
  }

  // Reports leaves behind nodes that no gradient reached: they are ready too. In the same order on
  // every rank, since a report may begin a collective.
  void settle_rest() {
    for (Leaf* leaf : leaves_) {
      if (expected_[leaf] > 0 && leaf->on_ready) leaf->on_ready(*leaf);
    }
  }

 private:
  std::map<uint64_t, Entry> entries_;
  std::unordered_map<Leaf*, int> expected_;
  std::vector<Leaf*> leaves_;  // the keys of expected_, as count_leaves met them
};

Gradients::Gradients(Node& node, std::vector<Tensor> outputs, Pending& pending)
    : node_(node), outputs_(std::move(outputs)), pending_(pending) {}

const Tensor& Gradients::output(int i) {
  Tensor& grad = outputs_[static_cast<size_t>(i)];
  if (grad.defined()) grad = grad.contiguous();
  return grad;
}

bool Gradients::needs(int input) const {
  const Node::Edge& edge = node_.inputs[static_cast<size_t>(input)];
  return edge.node || edge.leaf;
}

DType Gradients::dtype(int input) const {
  const Node::Edge& edge = node_.inputs[static_cast<size_t>(input)];
  return edge.leaf && edge.leaf->has_buffer ? edge.leaf->grad.dtype() : edge.dtype;
}

void Gradients::add(int input, const Tensor& grad) {
  const Node::Edge& edge = node_.inputs[static_cast<size_t>(input)];
  if (!edge.node && !edge.leaf) return;
  const bool dtype_fits = grad.dtype() == edge.dtype || (edge.leaf && edge.leaf->has_buffer &&
                                                         grad.dtype() == edge.leaf->grad.dtype());
  QUERN_CHECK(grad.shape() == edge.shape && dtype_fits, node_.op, ": the gradient of input ", input,
              " has shape ", grad.shape(), " and dtype ", grad.dtype(), ", expected ", edge.shape,
              " and ", edge.dtype);
  if (edge.leaf) return add_to_leaf(*edge.leaf, grad.contiguous());
  pending_.add(edge.node, edge.output, grad);
}

Gradients::Target Gradients::target(int input) {
  const Node::Edge& edge = node_.inputs[static_cast<size_t>(input)];
  if (edge.leaf && edge.leaf->has_buffer) {
    Leaf& leaf = *edge.leaf;
    return {leaf.grad, !std::exchange(leaf.fresh, false)};
  }
  const Tensor grad = Tensor::empty(edge.shape, edge.dtype, edge.device, node_.op);
  targets_.emplace_back(input, grad);  // add_targets() adds it after the rule
  return {grad, false};
}

void Gradients::add_targets() {
  for (const auto& [input, grad] : std::exchange(targets_, {})) add(input, grad);
}

// Builds the graph and runs it backwards.
class Tape {
 public:
  static Variable output(Tensor value, const std::shared_ptr<Node>& node, int index) {
    Variable variable(std::move(value));
    variable.node_ = node;
    variable.output_ = index;
    return variable;
  }

  // Makes the edge from `node` to an input. A record_root loss may enter one sum, which then
  // becomes root-only itself and follows the same rules.
  static Node::Edge edge_to(const Variable& input, Node& node, bool is_sum) {
    if (!input.requires_grad()) return {};
    if (is_sum && input.node_ && input.node_->root_only) {
      QUERN_CHECK(!std::exchange(input.node_->summed, true), input.node_->op,
                  ": its forward has added parameter gradients that hold for one backward(loss), ",
                  "and the loss is already part of a sum");
      node.root_only = true;
    } else {
      check_not_root_only(input);
    }
    QUERN_CHECK(!input.node_ || input.node_->order < node.order, node.op,
                ": its input comes from an op under another Context, expected the same");
    return {input.node_, input.output_, input.leaf_, input.shape(), input.dtype(), input.device()};
  }

  static void check_not_root_only(const Variable& x) {
    QUERN_CHECK(
        !x.node_ || !x.node_->root_only, x.node_->op,
        ": its forward has added parameter gradients that hold for backward(loss) and sums ",
        "of losses alone; scale the loss by the op's own argument, and read it by detach()");
  }

  static void set_root_only(const Variable& x) {
    if (x.node_) x.node_->root_only = true;
  }

  static void seed(Pending& pending, const Variable& root, const Tensor& grad) {
    QUERN_CHECK(root.requires_grad(),
                "backward: the root does not depend on anything that needs a gradient");
    QUERN_CHECK(grad.shape() == root.shape() && grad.dtype() == root.dtype(),
                "backward: the gradient has shape ", grad.shape(), " and dtype ", grad.dtype(),
                ", the root ", root.shape(), " and ", root.dtype());
    if (root.node_) return pending.add(root.node_, root.output_, grad.contiguous());
    add_to_leaf(*root.leaf_, grad.contiguous());
  }

  static void run(Pending& pending) {
    pending.count_leaves();
    while (!pending.empty()) {
      Pending::Entry entry = pending.pop_latest();
      Node& node = *entry.node;
      QUERN_CHECK(
          node.backward, "backward: ", node.op,
          " was already run backwards and its saved tensors are gone; compute the forward again");
      show_gradients(node, entry.grads);
      {
        const RangeScope range(Range{RangeKind::op, node.op, node.order});
        const NoGrad no_grad;
        const BackwardFn rule = std::exchange(node.backward, nullptr);
        Gradients gradients(node, std::move(entry.grads), pending);
        rule(gradients);
        gradients.add_targets();
      }
      for (const Node::Edge& edge : node.inputs) {
        if (edge.leaf) pending.settle(*edge.leaf);
      }
    }
    pending.settle_rest();
  }
};

namespace {

std::vector<Variable> record_op(const char* op, std::vector<Tensor> outputs,
                                const std::vector<Variable>& inputs, BackwardFn backward,
                                bool always, bool is_sum) {
  Context& context = Context::current();
  if (auto* const observer = context.observer<OutputObserver>()) {
    for (const Tensor& output : outputs) observer->on_output(op, output);
  }
  bool wanted = always;
  for (const Variable& input : inputs) wanted = wanted || input.requires_grad();
  wanted = wanted && context.grad_enabled;
  if (context.observer<InputObserver>()) {
    show_inputs(op, inputs, wanted ? context.next_node : Range::kNoNode);
  }
  std::shared_ptr<Node> node;
  if (wanted) {
    node = std::make_shared<Node>();
    node->op = op;
    node->order = context.next_node++;
    node->outputs = static_cast<int>(outputs.size());
    node->backward = std::move(backward);
    for (const Variable& input : inputs) {
      const bool passes = is_sum && input.shape() == outputs[0].shape();
      node->inputs.push_back(Tape::edge_to(input, *node, passes));
    }
  }
  std::vector<Variable> results;
  for (size_t i = 0; i < outputs.size(); ++i) {
    results.push_back(node ? Tape::output(std::move(outputs[i]), node, static_cast<int>(i))
                           : Variable(std::move(outputs[i])));
  }
  return results;
}

}  // namespace

std::vector<Variable> record(const char* op, std::vector<Tensor> outputs,
                             const std::vector<Variable>& inputs, BackwardFn backward,
                             bool always) {
  return record_op(op, std::move(outputs), inputs, std::move(backward), always, false);
}

Variable record(const char* op, Tensor output, const std::vector<Variable>& inputs,
                BackwardFn backward) {
  return record(op, std::vector<Tensor>{std::move(output)}, inputs, std::move(backward))[0];
}

Variable record_root(const char* op, Tensor loss, const std::vector<Variable>& inputs,
                     BackwardFn backward) {
  Variable root = record(op, std::move(loss), inputs, std::move(backward));
  Tape::set_root_only(root);
  return root;
}

Variable record_sum(const char* op, Tensor output, const std::vector<Variable>& inputs,
                    BackwardFn backward) {
  return record_op(op, {std::move(output)}, inputs, std::move(backward), false, true)[0];
}

void backward(const std::vector<Variable>& roots, const std::vector<Tensor>& grads) {
  QUERN_CHECK(roots.size() == grads.size(), "backward: ", roots.size(), " roots and ", grads.size(),
              " gradients");
  Pending pending;
  for (size_t i = 0; i < roots.size(); ++i) {
    Tape::check_not_root_only(roots[i]);
    Tape::seed(pending, roots[i], grads[i]);
  }
  Tape::run(pending);
}

void backward(const Variable& root, const Tensor& grad) {
  QUERN_CHECK(grad.defined() || root.numel() == 1, "backward: the root has shape ", root.shape(),
              "; give its gradient, or reduce it to one element");
  if (grad.defined()) return backward(std::vector{root}, {grad});
  const Tensor one = Tensor::empty(root.shape(), root.dtype(), root.device(), "gradient");
  fill(one, 1.0);
  Pending pending;
  Tape::seed(pending, root, one);
  Tape::run(pending);
}

}  // namespace quern
