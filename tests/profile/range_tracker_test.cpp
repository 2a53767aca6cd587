// The place of work, as observers of ranges see it: phases, module paths, ops, and backwards by
// their forward.
#include "profile/range_tracker.h"

#include <gtest/gtest.h>

#include "autograd/checkpoint.h"
#include "autograd/ops/binary.h"
#include "autograd/ops/naive.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/reduce.h"
#include "autograd/tape.h"
#include "tensor/factory.h"

namespace quern {
namespace {

// Records the place of every range when it ends.
class Log : public RangeTracker {
 public:
  explicit Log(Names& names) : RangeTracker(names), names_(names) {}

  struct Line {
    RangeKind kind;
    std::string name, phase, module, op, shapes, place_shapes;
    bool backward;
  };
  std::vector<Line> lines;

  void on_end() override {
    if (!open().empty()) {
      const Open& o = open().back();
      lines.push_back({o.kind, names_[o.name], names_[o.place.phase], names_[o.place.module],
                       names_[o.place.op], names_[o.shapes], names_[o.place.shapes],
                       o.place.backward});
    }
    RangeTracker::on_end();
  }

  std::vector<Line> of(const std::string& name) const {
    std::vector<Line> found;
    for (const Line& line : lines) {
      if (line.name == name) found.push_back(line);
    }
    return found;
  }

 private:
  Names& names_;
};

TEST(Names, AreNumberedOnce) {
  Names names;
  EXPECT_EQ(names.id(""), 0);
  const int32_t a = names.id("a"), b = names.id("b");
  EXPECT_NE(a, b);
  EXPECT_EQ(names.id(std::string("a")), a);
  for (int i = 0; i < 1000; ++i) names.id(cat("name ", i));  // texts move as they grow
  EXPECT_EQ(names.id("b"), b);
  EXPECT_EQ(names[a], "a");
  EXPECT_EQ(names[names.id("name 7")], "name 7");
}

TEST(RangeTracker, ModulesMakePathsWithinAPhase) {
  Names names;
  Log log(names);
  EXPECT_EQ(log.place().phase, 0);
  {
    const RangeScope phase(RangeKind::phase, "forward");
    const RangeScope block(RangeKind::module, "model.layers.3");
    for (const char* name : {"self_attn", "mlp"}) {
      const RangeScope module(RangeKind::module, name);
      const RangeScope op("linear");
      EXPECT_EQ(names[log.place().module], cat("model.layers.3.", name));
    }
  }
  const RangeScope optimizer(RangeKind::phase, "optimizer");
  EXPECT_EQ(names[log.place().phase], "optimizer");
  EXPECT_EQ(log.place().module, 0);
  ASSERT_EQ(log.lines.size(), 6u);
  EXPECT_EQ(log.lines[1].module, "model.layers.3.self_attn");  // a module has its own path
  EXPECT_EQ(log.lines[1].op, "");
  EXPECT_EQ(log.lines[2].phase, "forward");
  EXPECT_EQ(log.lines[4].module, "model.layers.3");
  EXPECT_EQ(log.lines[5].module, "");
}

TEST(RangeTracker, ABackwardIsWhereItsForwardWas) {
  Names names;
  Log log(names);
  const Variable x = Variable::leaf(ones({2, 3}));
  Variable y;
  {
    const RangeScope phase(RangeKind::phase, "forward");
    const RangeScope module(RangeKind::module, "mlp");
    y = sum(mul(x, ones({3})));
  }
  {
    const RangeScope phase(RangeKind::phase, "backward");
    backward(y);
  }
  const auto products = log.of("mul");
  ASSERT_GE(products.size(), 2u);  // the rule of mul multiplies too
  EXPECT_FALSE(products.front().backward);
  EXPECT_EQ(products.front().shapes, "(2, 3) (3)");
  const Log::Line& last = products.back();
  EXPECT_TRUE(last.backward);
  EXPECT_EQ(last.phase, "backward");
  EXPECT_EQ(last.module, "mlp");
  EXPECT_EQ(last.op, "mul");
  EXPECT_EQ(last.shapes, "(2, 3) (3)");
  EXPECT_EQ(log.of("backward").at(0).module, "");
}

// The op called by the module, and its parts, each with shapes of its own.
TEST(RangeTracker, AComposedOpIsOneAndItsPartsKeepTheirShapes) {
  Names names;
  Log log(names);
  const Variable x = Variable::leaf(ones({4, 6}));
  const Variable y = naive_rms_norm(x, ones({6}), 1e-5);
  const auto whole = log.of("naive_rms_norm");
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_EQ(whole[0].op, "naive_rms_norm");
  EXPECT_EQ(whole[0].shapes, "(4, 6)");  // of its first part
  const auto products = log.of("mul");
  ASSERT_FALSE(products.empty());
  EXPECT_EQ(products.back().op, "naive_rms_norm");
  EXPECT_EQ(products.back().shapes, "(4, 6) (6)");
  EXPECT_EQ(products.back().place_shapes, "(4, 6)");
  log.lines.clear();
  backward(sum(y));
  size_t backwards = 0;
  for (const Log::Line& line : log.of("mul")) {
    if (!line.backward) continue;
    ++backwards;
    EXPECT_EQ(line.op, "naive_rms_norm");
  }
  EXPECT_GT(backwards, 0u);
}

// Work recomputed by a checkpoint is no backward, and has its place in the forward.
TEST(RangeTracker, ACheckpointComputesAgainInItsModules) {
  Names names;
  Log log(names);
  const Variable x = Variable::leaf(ones({2}));
  Variable y;
  {
    const RangeScope phase(RangeKind::phase, "forward");
    const auto block = [](const Variable& in) {
      const RangeScope module(RangeKind::module, "model.layers.0");
      return exp(in);
    };
    y = sum(checkpoint(block, x));
  }
  log.lines.clear();
  {
    const RangeScope phase(RangeKind::phase, "backward");
    backward(y);
  }
  const auto exps = log.of("exp");
  ASSERT_EQ(exps.size(), 2u);
  EXPECT_FALSE(exps[0].backward);
  EXPECT_EQ(exps[0].phase, "backward");
  EXPECT_EQ(exps[0].module, "model.layers.0");
  EXPECT_EQ(exps[0].op, "exp");
  EXPECT_TRUE(exps[1].backward);
  EXPECT_EQ(exps[1].module, "model.layers.0");
  EXPECT_EQ(exps[1].op, "exp");
  EXPECT_TRUE(log.of("checkpoint").at(0).backward);
  EXPECT_EQ(log.of("checkpoint").at(0).module, "");
}

// A tracker attached between forward and backward sees a backward without a place.
TEST(RangeTracker, ABackwardOfAnUnseenForwardIsABackward) {
  const Variable y = exp(Variable::leaf(ones({})));
  Names names;
  Log log(names);
  backward(y);
  ASSERT_FALSE(log.lines.empty());
  EXPECT_EQ(log.lines.back().name, "exp");
  EXPECT_TRUE(log.lines.back().backward);
  EXPECT_EQ(log.lines.back().module, "");
}

TEST(RangeTracker, TwoAreToldTheSame) {
  Names names;
  Log outer(names);
  {
    Log inner(names);
    exp(Variable(ones({5})));
    EXPECT_EQ(inner.of("exp").at(0).shapes, "(5)");
  }
  EXPECT_EQ(outer.of("exp").at(0).shapes, "(5)");
  exp(Variable(ones({6})));
  EXPECT_EQ(outer.of("exp").at(1).shapes, "(6)");
}

// Exceptions end ranges too. A tracker accepts the end of ranges whose begin it saw.
TEST(RangeTracker, EndsWithAnException) {
  Names names;
  Log log(names);
  try {
    const RangeScope module(RangeKind::module, "mlp");
    fail("on purpose");
  } catch (const Error&) {
  }
  EXPECT_EQ(log.place().module, 0);
  EXPECT_EQ(log.lines.size(), 1u);
}

TEST(RangeTracker, LeavesTheContextAsItWas) {
  Names names;
  { const Log log(names); }
  EXPECT_EQ(Context::current().observer<InputObserver>(), nullptr);
  exp(Variable(ones({})));  // the tracker must not see it
}

}  // namespace
}  // namespace quern
