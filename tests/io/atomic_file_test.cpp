#include "io/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <map>
#include <set>
#include <vector>

#include "support/faults.h"
#include "support/file_size_limit.h"
#include "support/files.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;

TEST(AtomicFile, IsThereOnlyAfterCommit) {
  const TemporaryFolder folder;
  {
    AtomicFile file(folder / "a");
    file.write("hello ");
    file.write("world");
    EXPECT_FALSE(fs::exists(folder / "a"));
    const FileDigest digest = file.commit();
    EXPECT_EQ(digest, digest_of(std::as_bytes(std::span(std::string_view("hello world")))));
  }
  EXPECT_EQ(read_file(folder / "a"), "hello world");
  EXPECT_FALSE(fs::exists(folder / "a.tmp"));
}

TEST(AtomicFile, WithoutCommitTheOldContentStays) {
  const TemporaryFolder folder;
  write_file(folder / "a", "old");
  { AtomicFile(folder / "a").write("new"); }
  EXPECT_EQ(read_file(folder / "a"), "old");
  EXPECT_FALSE(fs::exists(folder / "a.tmp"));
  write_file_atomically(folder / "a", "new");
  EXPECT_EQ(read_file(folder / "a"), "new");
}

TEST(AtomicFile, AFullDiskIsNamedAndLeavesNothing) {
  const TemporaryFolder folder;
  fs::create_symlink("/dev/full", folder / "a.tmp");  // every write: ENOSPC
  expect_error([&] { write_file_atomically(folder / "a", "text"); },
               {(folder / "a").string(), "No space left on device"});
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

// Large files reach the disk as they are written. fsync does not repeat the errors found there.
TEST(AtomicFile, AnErrorOnTheWayToTheDiskIsNamedAndLeavesNothing) {
  const TemporaryFolder folder;
  const std::vector<std::byte> piece(size_t{32} << 20);
  const auto write_after = [&](int failing, int reason) {
    int calls = 0;
    const FaultyCalls faults([&](const std::string& call, const std::string&) {
      return call == "sync_file_range" && ++calls == failing ? reason : 0;
    });
    AtomicFile file(folder / "a");
    for (int i = 0; i < 3; ++i) file.write(piece);
    file.commit();
    return calls;
  };
  for (const int failing : {1, 2, 5}) {  // begins the first piece; the second; waits for the second
    expect_error([&] { write_after(failing, EIO); },
                 {(folder / "a").string(), "cannot be written to disk", "Input/output error"});
    EXPECT_TRUE(fs::is_empty(folder.path())) << failing;
  }
  for (const int reason :
       {ENOSPC, ENODATA, ESTALE, EOPNOTSUPP}) {  // disks and networks have others
    expect_error([&] { write_after(5, reason); }, {"cannot be written to disk"});
  }
  EXPECT_EQ(write_after(0, 0), 5) << "starts three pieces and waits for two";
  EXPECT_EQ(write_after(2, EINTR), 6) << "repeated";
  EXPECT_EQ(write_after(1, ESPIPE), 5) << "where the file system cannot, fsync does";
  EXPECT_EQ(fs::file_size(folder / "a"), 3 * piece.size());
}

TEST(AtomicFile, AShortWriteIsNamedAndLeavesNothing) {
  const TemporaryFolder folder;
  const FileSizeLimit limit(1000);  // the kernel writes 1000 bytes, then refuses
  expect_error([&] { write_file_atomically(folder / "a", std::string(4096, 'x')); },
               {(folder / "a").string(), "File too large"});
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

// `--out /dev/stdout` of a program that runs as root must not replace the device.
TEST(AtomicFile, ALinkStaysAndOnlyFilesAreReplaced) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "target");
  write_file(folder / "target/a", "old");
  fs::create_symlink("target/a", folder / "link");
  write_file_atomically(folder / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(read_file(folder / "target/a"), "new");

  fs::create_symlink("nowhere", folder / "to_nothing");
  write_file_atomically(folder / "to_nothing", "text");
  EXPECT_TRUE(fs::is_symlink(folder / "to_nothing"));
  EXPECT_EQ(read_file(folder / "nowhere"), "text");

  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  fs::create_symlink("/dev/null", folder / "device");
  fs::create_symlink("loop", folder / "loop");
  for (const char* name : {"pipe", "device", "target", "loop"}) {
    expect_error([&] { write_file_atomically(folder / name, "text"); },
                 {(folder / name).string(), "is not a regular file, and cannot be replaced"});
    EXPECT_FALSE(fs::exists(folder / cat(name, ".tmp")));
  }
  EXPECT_TRUE(fs::is_fifo(folder / "pipe"));
}

TEST(AtomicFile, AMissingFolderIsNamed) {
  const TemporaryFolder folder;
  expect_error([&] { write_file_atomically(folder / "no" / "a", "text"); },
               {(folder / "no" / "a").string(), "No such file or directory"});
  expect_error([&] { sync_directory(folder / "no"); }, {(folder / "no").string()});
}

TEST(ReplaceDirectory, TakesThePlaceOfTheOldOne) {
  const TemporaryFolder folder;
  write_file(folder / "new/a", "new");
  replace_directory(folder / "new", folder / "place");
  EXPECT_EQ(read_file(folder / "place/a"), "new");
  write_file(folder / "newer/b", "newer");
  replace_directory(folder / "newer", folder / "place");
  EXPECT_EQ(read_file(folder / "place/b"), "newer");
  EXPECT_FALSE(fs::exists(folder / "place/a"));
  EXPECT_FALSE(fs::exists(folder / "newer"));
}

// Not every file system can exchange names. The old content has a name at every moment.
TEST(ReplaceDirectory, WithoutAnExchangeTheOldOneSurvivesAFailure) {
  const TemporaryFolder folder;
  const fs::path place = folder / "place", old = folder / "place.old";
  write_file(place / "a", "old");
  write_file(folder / "new/a", "new");
  {
    const FaultyCalls faults([&](const std::string& call, const std::string& path) {
      if (call == "renameat2") return EINVAL;
      if (call != "rename" || path != folder / "new") return 0;
      EXPECT_EQ(read_file(old / "a"), "old") << "a crash here must not lose it";
      return EIO;
    });
    expect_error([&] { replace_directory(folder / "new", place); }, {"place", "Input/output"});
    EXPECT_EQ(read_file(place / "a"), "old");
    EXPECT_FALSE(fs::exists(old));
  }
  {
    const FaultyCalls faults([](const std::string& call, const std::string&) {
      return call == "renameat2" ? EINVAL : 0;
    });
    replace_directory(folder / "new", place);
  }
  EXPECT_EQ(read_file(place / "a"), "new");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

TEST(ReplaceDirectory, TheFolderAndItsParentReachTheDisk) {
  const TemporaryFolder folder;
  write_file(folder / "new/a", "new");
  std::vector<std::string> synced;
  {
    const FaultyCalls calls([&](const std::string& call, const std::string& path) {
      if (call == "fsync" || call.starts_with("rename")) synced.push_back(cat(call, " ", path));
      return 0;
    });
    replace_directory(folder / "new", folder / "place");
  }
  const std::string path = folder.path().string();
  EXPECT_EQ(synced, (std::vector<std::string>{cat("fsync ", path, "/new"),
                                              cat("rename ", path, "/new"), cat("fsync ", path)}));
}

TEST(AtomicFile, ACopyReachesTheDisk) {
  const TemporaryFolder folder;
  write_file(folder / "a", "text");
  std::set<std::string> synced;
  {
    const FaultyCalls calls([&](const std::string& call, const std::string& path) {
      if (call == "fsync") synced.insert(path);
      return 0;
    });
    EXPECT_EQ(copy_file_atomically(folder / "a", folder / "b").bytes, 4);
  }
  EXPECT_EQ(read_file(folder / "b"), "text");
  EXPECT_EQ(synced, (std::set<std::string>{folder / "b.tmp", folder.path()}));
}

TEST(AtomicFile, InterruptedCallsAreRepeated) {
  const TemporaryFolder folder;
  std::map<std::string, int> calls;
  const FaultyCalls interrupted([&](const std::string& call, const std::string& path) {
    if (call == "close") return 0;  // not repeated: Linux releases the descriptor
    return ++calls[cat(call, " ", path)] == 1 ? EINTR : 0;
  });
  write_file_atomically(folder / "a", "text");
  EXPECT_EQ(calls.size(), 6u) << "open, write, fsync, rename; open and fsync of the folder";
  EXPECT_EQ(read_file(folder / "a"), "text");
}

}  // namespace
}  // namespace quern
