#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <thread>

#include "dist/store.h"
#include "dist/store_server.h"
#include "support/files.h"
#include "support/forked_ranks.h"
#include "support/store_failure.h"

namespace quern {
namespace {

using namespace testing_support;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// A plain TCP socket on 127.0.0.1.
class RawSocket {
 public:
  RawSocket() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  explicit RawSocket(int fd) : fd_(fd) {}
  ~RawSocket() { ::close(fd_); }
  RawSocket(const RawSocket&) = delete;
  RawSocket& operator=(const RawSocket&) = delete;

  int bind() {  // to a free port, which it returns
    sockaddr_in address = at(0);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    return ntohs(address.sin_port);
  }
  int listen() {
    const int port = bind();
    EXPECT_EQ(::listen(fd_, 8), 0);
    return port;
  }
  int accept() { return ::accept(fd_, nullptr, nullptr); }
  void connect(int port) {
    const sockaddr_in address = at(port);
    ASSERT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  void send(const std::string& bytes) {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t n = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return;  // refused
      sent += static_cast<size_t>(n);
    }
  }
  // Whether the peer closes the connection, without an answer.
  bool is_closed_within(milliseconds limit) {
    pollfd entry{fd_, POLLIN, 0};
    char byte;
    return ::poll(&entry, 1, static_cast<int>(limit.count())) == 1 && ::recv(fd_, &byte, 1, 0) <= 0;
  }
  std::string receive(size_t count) {
    std::string bytes(count, '\0');
    bytes.resize(
        static_cast<size_t>(std::max<ssize_t>(0, ::recv(fd_, bytes.data(), count, MSG_WAITALL))));
    return bytes;
  }

 private:
  static sockaddr_in at(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  int fd_;
};

class TcpStoreTest : public testing::Test {
 protected:
  std::unique_ptr<Store> open(int rank, milliseconds limit = milliseconds(10000)) {
    return open_store({address_, rank, 4, limit});
  }

  const int port_ = RawSocket().bind();
  const std::string address_ = cat("tcp:127.0.0.1:", port_);
};

TEST_F(TcpStoreTest, ARankReadsWhatAnotherSets) {
  const auto first = open(0), second = open(1);
  const std::string binary("\0a\xff\n", 4), large(1 << 20, 'x');
  first->set("a", binary);
  second->set("b/c", "");
  second->set("large", large);
  EXPECT_EQ(second->get("a"), binary);
  EXPECT_EQ(second->get("a"), binary);
  EXPECT_EQ(first->get("b/c"), "");
  EXPECT_EQ(first->get("large"), large);
}

TEST_F(TcpStoreTest, LocalhostIsAnAddress) {
  const StoreOptions options{cat("tcp:localhost:", port_)};
  const auto first = open_store(options);
  const auto second = open_store({options.address, 1, 2});
  first->set("a", "1");
  EXPECT_EQ(second->get("a"), "1");
}

TEST_F(TcpStoreTest, GetWaits) {
  const auto first = open(0), second = open(1);
  std::thread setter([&] {
    std::this_thread::sleep_for(milliseconds(100));
    first->set("late", "value");
  });
  EXPECT_EQ(second->get("late"), "value");
  setter.join();
}

TEST_F(TcpStoreTest, OtherRanksWaitForRank0) {
  std::unique_ptr<Store> first;
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(200));
    first = open(0);
    first->set("a", "1");
  });
  EXPECT_EQ(open(1)->get("a"), "1");
  late.join();
}

TEST_F(TcpStoreTest, FourProcessesExchangeKeys) {
  ForkedRanks ranks(4, [&](int rank) {
    const auto store = open(rank);
    for (int i = 0; i < 20; ++i) store->set(cat(rank, "/", i), cat(rank * i));
    for (int other = 0; other < 4; ++other) {
      for (int i = 0; i < 20; ++i) {
        if (store->get(cat(other, "/", i)) != cat(other * i)) return std::string("wrong value");
      }
    }
    store->set(cat("done/", rank), "");
    for (int other = 0; rank == 0 && other < 4; ++other) store->get(cat("done/", other));
    return std::string("right");
  });
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(ranks.text(rank), "right");
}

TEST_F(TcpStoreTest, ThreadsShareAStore) {
  const auto store = open(0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        store->set(cat(t, "/", i), cat(t));
        EXPECT_EQ(store->get(cat((t + 1) % 4, "/", i)), cat((t + 1) % 4));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(TcpStoreTest, AKeyThatNoRankSetsExceedsTheLimit) {
  const auto first = open(0);
  const auto second = open(1, milliseconds(200));
  const auto begin = Clock::now();
  expect_error([&] { second->get("a"); },
               {address_ + ": get of 'a': no rank set it within 200 ms"});
  EXPECT_GE(Clock::now() - begin, milliseconds(200));
  EXPECT_LT(Clock::now() - begin, milliseconds(5000));
}

TEST_F(TcpStoreTest, AReportedFailureEndsTheOthersWaits) {
  const auto first = open(0), second = open(1);
  expect_reported_failure_ends_waits(*first, *second);
}

TEST_F(TcpStoreTest, AKeyKeepsItsValue) {
  const auto first = open(0), second = open(1);
  first->set("a", "1");
  second->set("a", "1");
  expect_error([&] { second->set("a", "2"); },
               {address_ + ": set of 'a': it has another value already"});
  EXPECT_EQ(second->get("a"), "1");
}

TEST_F(TcpStoreTest, AStoreThatNoRankServesIsAnError) {
  expect_error([&] { open(1, milliseconds(200)); },
               {address_ + ": cannot be reached: rank 0's store did not answer within 200 ms: "
                           "Connection refused"});
  expect_error(
      [&] {
        open_store({"tcp:no-such-host.invalid:29500", 1, 2, milliseconds(200)});
      },
      {"tcp:no-such-host.invalid:29500: cannot be reached: no address within 200 ms: "});
}

TEST_F(TcpStoreTest, AStoreThatEndsIsAnError) {
  auto first = open(0);
  const auto second = open(1, milliseconds(1000));
  std::thread end([&] {
    std::this_thread::sleep_for(milliseconds(50));
    first.reset();
  });
  expect_error([&] { second->get("a"); },
               {address_ + ": get of 'a': rank 0's store did not answer within ", " ms: "});
  end.join();
}

TEST_F(TcpStoreTest, APortInUseIsAnError) {
  const auto first = open(0);
  expect_error([&] { open(0); }, {address_ + ": rank 0 cannot serve the store: port " +
                                  std::to_string(port_) + " is in use by another program"});
  const auto again = open(1);
  first->set("a", "1");
  EXPECT_EQ(again->get("a"), "1");
}

TEST_F(TcpStoreTest, APortIsFreeAgainAfterItsStore) {
  for (int i = 0; i < 3; ++i) {
    const auto first = open(0), second = open(1);
    first->set("a", cat(i));
    EXPECT_EQ(second->get("a"), cat(i));
  }
}

TEST_F(TcpStoreTest, Rank0MustRunAtTheAddress) {
  const std::string address = cat("tcp:192.0.2.1:", port_);  // reserved for documentation
  expect_error([&] { open_store({address}); },
               {address + ": rank 0 cannot serve the store: 192.0.2.1 is not an address of this "
                          "machine, where rank 0 runs"});
}

TEST_F(TcpStoreTest, AnotherProgramAtTheAddressIsAnError) {
  RawSocket server;
  const int port = server.listen();
  std::thread answer([&] {
    RawSocket client(server.accept());
    client.receive(store_wire::kRequestHead);
    client.send("HTTP/1.1 400 Bad Request\r\n\r\n");
  });
  expect_error(
      [&] {
        open_store({cat("tcp:127.0.0.1:", port), 1, 2, milliseconds(10000)});
      },
      {cat("tcp:127.0.0.1:", port,
           ": cannot be reached: another program answers at this address")});
  answer.join();
}

TEST_F(TcpStoreTest, AProgramThatDoesNotAnswerExceedsTheLimit) {
  RawSocket server;
  const std::string address = cat("tcp:127.0.0.1:", server.listen());
  expect_error(
      [&] {
        open_store({address, 1, 2, milliseconds(200)});
      },
      {address + ": cannot be reached: rank 0's store did not answer within 200 ms: "
                 "no answer"});
}

std::string big_endian(uint32_t number) {
  const uint32_t network = htonl(number);
  return {reinterpret_cast<const char*>(&network), 4};
}

// Each closes that connection, and harms no other.
TEST_F(TcpStoreTest, GarbageIsRefused) {
  const auto first = open(0), second = open(1);
  const std::string mark = store_wire::kMark;
  const std::string get = store_wire::request(StoreOp::get, "never", "");
  const std::string cases[] = {
      "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
      std::string(100000, '\0'),
      std::string(100000, '\xff'),
      mark + '\x03' + big_endian(1) + big_endian(0) + "a",            // an unknown operation
      mark + '\x01' + big_endian(81) + big_endian(0),                 // key too long
      mark + '\x01' + big_endian(0xffffffff) + big_endian(0),         //
      mark + '\x01' + big_endian(1) + big_endian((1 << 20) + 1),      // value too long
      mark + '\x01' + big_endian(1) + big_endian(0xffffffff) + "a",   //
      mark + '\x02' + big_endian(1) + big_endian(0) + "more than a",  // longer than it says
      get + get,                                                      // two at once
  };
  for (const std::string& bytes : cases) {
    RawSocket client;
    client.connect(port_);
    client.send(bytes);
    EXPECT_TRUE(client.is_closed_within(milliseconds(5000))) << bytes.substr(0, 20);
  }
  RawSocket waiting;  // more while its get waits
  waiting.connect(port_);
  waiting.send(get);
  EXPECT_FALSE(waiting.is_closed_within(milliseconds(100)));
  waiting.send("x");
  EXPECT_TRUE(waiting.is_closed_within(milliseconds(5000)));
  first->set("a", "1");
  EXPECT_EQ(second->get("a"), "1");
}

// Random bytes, half of them behind a mark.
TEST_F(TcpStoreTest, RandomBytesHarmNoOther) {
  const auto first = open(0), second = open(1);
  uint64_t state = 1;
  const auto random = [&] { return (state = state * 6364136223846793005u + 1) >> 33; };
  for (int i = 0; i < 300; ++i) {
    std::string bytes = i % 2 ? store_wire::kMark : "";
    for (uint64_t n = random() % 64; n > 0; --n) bytes += static_cast<char>(random());
    if (i % 4 == 1) bytes += static_cast<char>(random() % 3) + big_endian(5) + big_endian(7);
    RawSocket client;
    client.connect(port_);
    client.send(bytes);
  }
  first->set("a", "1");
  EXPECT_EQ(second->get("a"), "1");
}

TEST_F(TcpStoreTest, AByteAtATimeIsARequest) {
  const auto first = open(0);
  RawSocket client;
  client.connect(port_);
  for (const char c : store_wire::request(StoreOp::set, "slow", "value")) {
    client.send(std::string(1, c));
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(client.receive(store_wire::kReplyHead), store_wire::reply(StoreStatus::done, ""));
  EXPECT_EQ(first->get("slow"), "value");
}

TEST_F(TcpStoreTest, AClientThatSendsHalfARequestIsDroppedAndHarmsNoOther) {
  const auto first = open(0, milliseconds(300));
  const auto second = open(1);
  RawSocket silent, half;
  silent.connect(port_);
  half.connect(port_);
  half.send(std::string(store_wire::kMark) + '\x01');
  first->set("a", "1");
  EXPECT_EQ(second->get("a"), "1");
  EXPECT_FALSE(half.is_closed_within(milliseconds(100)));
  EXPECT_TRUE(half.is_closed_within(milliseconds(5000)));
  EXPECT_TRUE(silent.is_closed_within(milliseconds(5000)));
}

TEST_F(TcpStoreTest, ClientsThatDoNotReadHarmNoOther) {
  const auto first = open(0, milliseconds(300));
  const auto second = open(1);
  first->set("large", std::string(1 << 20, 'x'));
  std::vector<std::unique_ptr<RawSocket>> clients;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(std::make_unique<RawSocket>());
    clients.back()->connect(port_);
    clients.back()->send(store_wire::request(StoreOp::get, "large", ""));
  }
  first->set("a", "1");
  EXPECT_EQ(second->get("a"), "1");
}

TEST_F(TcpStoreTest, TheServerEndsWhileClientsWait) {
  auto first = open(0);
  RawSocket waiting, silent;
  waiting.connect(port_);
  silent.connect(port_);
  waiting.send(store_wire::request(StoreOp::get, "never", ""));
  std::this_thread::sleep_for(milliseconds(50));
  const auto begin = Clock::now();
  first.reset();
  EXPECT_LT(Clock::now() - begin, milliseconds(5000));
  EXPECT_TRUE(waiting.is_closed_within(milliseconds(5000)));
}

TEST_F(TcpStoreTest, AFullStoreIsAnError) {
  const auto store = open(0);
  const std::string large(1 << 20, 'x');
  expect_error(
      [&] {
        for (int i = 0; i < 64; ++i) store->set(cat("large/", i), large);
      },
      {address_ + ": set of 'large/63': the store is full"});
}

TEST_F(TcpStoreTest, MoreConnectionsThanAllowedAreRefused) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < 2400) GTEST_SKIP() << "at most " << files.rlim_cur << " open files";
  const auto first = open(0);
  std::vector<std::unique_ptr<RawSocket>> clients;
  for (int i = 0; i < 1100; ++i) {
    clients.push_back(std::make_unique<RawSocket>());
    clients.back()->connect(port_);
  }
  EXPECT_TRUE(clients.back()->is_closed_within(milliseconds(5000)));
  clients.clear();
  first->set("a", "1");
  EXPECT_EQ(first->get("a"), "1");
}

}  // namespace
}  // namespace quern
