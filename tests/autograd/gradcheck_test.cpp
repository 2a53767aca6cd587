// Every differentiable op against central differences. The list of ops is read from the headers, so
// that an op without a case fails here.
#include "autograd/gradcheck.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>

#include "autograd/ops/pointwise.h"
#include "kernels/cpu/threads.h"
#include "support/files.h"
#include "support/op_cases.h"

namespace quern {
namespace {

using namespace testing_support;

// Names of the functions in src/autograd/ops/*.h that return Variables, and of those that
// pointwise.h makes from the list.
std::set<std::string> declared_ops() {
  const std::regex declaration(
      R"((?:^|\n)(?:inline )?(?:Variable|std::vector<Variable>|std::pair<Variable, Variable>|\w+Result)\s+(\w+)\()");
  std::set<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(source_folder() / "src" / "autograd" / "ops")) {
    if (entry.path().extension() != ".h") continue;
    std::ifstream file(entry.path());
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    for (std::sregex_iterator it(text.begin(), text.end(), declaration), end; it != end; ++it) {
      names.insert((*it)[1]);
    }
  }
#define QUERN_NAME(name, Functor) names.insert(#name);
  QUERN_POINTWISE_OPS(QUERN_NAME)
#undef QUERN_NAME
  for (const char* family : {"pointwise", "binary"}) names.erase(family);  // what their ops call
  return names;
}

TEST(Gradcheck, EveryOpHasACase) {
  const std::set<std::string> declared = declared_ops();
  EXPECT_GE(declared.size(), 45u) << "the headers were not read";
  std::set<std::string> covered;
  for (const OpCase& c : op_cases()) covered.insert(c.op);
  for (const std::string& op : declared) EXPECT_TRUE(covered.contains(op)) << op << " has no case";
  for (const std::string& op : covered) EXPECT_TRUE(declared.contains(op)) << op << " is no op";
}

// A check calls small kernels thousands of times: more threads would only wait for each other.
class OneThread {
 public:
  OneThread() { kernels::cpu::set_thread_count(1); }
  ~OneThread() { kernels::cpu::set_thread_count(before_); }

 private:
  int before_ = kernels::cpu::thread_count();
};

TEST(Gradcheck, EveryCase) {
  const OneThread one_thread;
  for (const OpCase& c : op_cases()) {
    SCOPED_TRACE(cat(c.op, ": ", c.label));
    GradcheckResult result;
    ASSERT_NO_THROW(result = gradcheck(c.fn, c.inputs));
    EXPECT_TRUE(result.ok) << result.message;
  }
}

// The check itself: it must find a wrong rule.
TEST(Gradcheck, FindsAWrongGradient) {
  const auto wrong_square = [](const std::vector<Variable>& in) {
    const Tensor x = in[0].value();
    return record("wrong", pow(x, 2.0).value(), {in[0]}, [x](Gradients& g) { g.add(0, x); });
  };
  const GradcheckResult result = gradcheck(wrong_square, {values({3}, 1, 0.5, 1.0)});
  EXPECT_FALSE(result.ok);
  EXPECT_NE(result.message.find("input 0 element 0"), std::string::npos) << result.message;
}

TEST(Gradcheck, FindsAMissingGradient) {
  const auto detached = [](const std::vector<Variable>& in) { return exp(in[0].detach()); };
  EXPECT_FALSE(gradcheck(detached, {values({3}, 1)}).ok);
}

TEST(Gradcheck, WantsDouble) {
  const auto same = [](const std::vector<Variable>& in) { return exp(in[0]); };
  EXPECT_THROW(gradcheck(same, {values({3}, 1).to(DType::f32)}), Error);
}

}  // namespace
}  // namespace quern
