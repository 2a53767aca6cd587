// NCCL without a GPU: what is missing, and what to do about it. tests/gpu/dist/collectives_test.cpp
// runs the collectives.
#include "dist/nccl.h"

#include <gtest/gtest.h>

#include "support/files.h"
#include "tensor/context.h"

namespace quern {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;
using namespace testing_support;

struct NoStore : Store {
  NoStore() : Store("none", 10ms) {}
  void put(const std::string& /*key*/, const std::string& /*value*/,
           milliseconds /*limit*/) override {
    fail("store: put");
  }
  std::optional<std::string> find(const std::string& /*key*/, milliseconds /*limit*/) override {
    fail("store: find");
  }
};

TEST(Nccl, AMissingLibraryIsAReason) {
  std::string reason;
  EXPECT_FALSE(nccl_available(&reason, "/no/such/libnccl.so.2"));
  EXPECT_NE(reason, "");
  EXPECT_FALSE(nccl_available(nullptr, "/no/such/libnccl.so.2"));
  if (reason.starts_with("this build")) GTEST_SKIP() << reason;
  EXPECT_NE(reason.find("/no/such/libnccl.so.2"), std::string::npos) << reason;
}

TEST(Nccl, AnotherLibraryIsAReason) {
  std::string reason;
  EXPECT_FALSE(nccl_available(&reason, "libc.so.6"));
  if (reason.starts_with("this build")) GTEST_SKIP() << reason;
  EXPECT_EQ(reason, "the library has no ncclGetVersion");
}

TEST(Nccl, TheCpuHasNone) {
  const auto store = std::make_shared<NoStore>();
  std::string reason;
  nccl_available(&reason, "/no/such/libnccl.so.2");
  if (reason.starts_with("this build")) {
    EXPECT_THROW(nccl_group(store, 0, 1, 10ms), UsageError);
    expect_error([&] { nccl_group(store, 0, 1, 10ms); },
                 {"NCCL is not available: this build has no", "pip install nvidia-nccl-cu13"});
  } else {
    expect_error([&] { nccl_group(store, 0, 1, 10ms); }, {"NCCL", "the current device is cpu"});
  }
}

}  // namespace
}  // namespace quern
