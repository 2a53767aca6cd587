#include "dist/host_address.h"

#include <gtest/gtest.h>

#include "dist/communicator.h"
#include "dist/host_name.h"
#include "support/files.h"

namespace quern {
namespace {

using namespace testing_support;

// This rank's address, or the error where the machine has no network, beside a rank that has
// written `other`.
std::string address_beside(const std::string& other) {
  const TemporaryFolder folder;
  const auto store =
      open_store({.address = cat("file:", (folder / "store").string()), .rank = 0, .size = 2});
  store->set("host/1", other);
  try {
    return listening_address(*store, "host", 0, 2);
  } catch (const CommunicationError& error) {
    return error.what();
  }
}

TEST(HostAddress, IsTheLoopbackAddressOnlyOnOneMachine) {
  const std::string loopback = "127.0.0.1";
  EXPECT_EQ(address_beside(cat(host_name(), ' ', machine_id())), loopback);
  EXPECT_NE(address_beside(host_name()), loopback) << "another machine of the same name";
  EXPECT_NE(address_beside(cat("another ", machine_id())), loopback) << "another container";
}

}  // namespace
}  // namespace quern
