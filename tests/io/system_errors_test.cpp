// System calls that fail: each error names the file and the reason.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>

#include "io/append_file.h"
#include "io/atomic_file.h"
#include "io/byte_stream.h"
#include "io/file_lock.h"
#include "io/input_files.h"
#include "io/mapped_file.h"
#include "io/small_file.h"
#include "support/faults.h"
#include "support/files.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;

// Every call of this name on a path with this end fails.
FaultyCalls::Hook failing(const std::string& name, int reason, const std::string& end = "") {
  return [=](const std::string& call, const std::string& path) {
    return call == name && path.ends_with(end) ? reason : 0;
  };
}

// Expects `work` to throw an error with these parts while those calls fail.
template <class F>
void expect_fault(const FaultyCalls::Hook& hook, F&& work,
                  std::initializer_list<std::string> parts) {
  const FaultyCalls faults(hook);
  expect_error(work, parts);
}

class SystemErrors : public testing::Test {
 protected:
  TemporaryFolder folder_;
  const fs::path file_ = write_file(folder_ / "a", "text");
};

TEST_F(SystemErrors, AppendFile) {
  AppendFile file(folder_ / "log");
  file.write("one\n");
  expect_fault(failing("write", ENOSPC), [&] { file.write("two\n"); }, {"log: cannot be written"});
  int calls = 0;
  const auto no_offset = [&](const std::string& call, const std::string&) {
    if (call == "lseek") return ESPIPE;
    return call == "write" && ++calls > 0 ? EIO : 0;
  };
  expect_fault(no_offset, [&] { file.write("two\n"); }, {"log: cannot be written: Input/output"});
  EXPECT_EQ(read_file(folder_ / "log"), "one\n") << "it is not cut where its end is not known";
  expect_fault(failing("fsync", EIO), [&] { file.sync(); }, {"log: cannot be written to disk"});
  const FaultyCalls no_sync(failing("fsync", EINVAL));
  EXPECT_NO_THROW(file.sync()) << "a pipe has no fsync";
  EXPECT_THROW(AppendFile(folder_ / "no" / "log"), Error);
}

TEST_F(SystemErrors, AppendFileInterrupted) {
  int writes = 0;
  const FaultyCalls interrupted([&](const std::string& call, const std::string&) {
    return call == "write" && ++writes == 1 ? EINTR : 0;
  });
  AppendFile(folder_ / "log").write("one\n");
  EXPECT_EQ(writes, 2);
}

TEST_F(SystemErrors, AtomicFile) {
  const auto write = [&] { write_file_atomically(file_, "new"); };
  expect_fault(failing("fsync", EIO, "a.tmp"), write, {"a: cannot be written to disk"});
  expect_fault(failing("close", EIO, "a.tmp"), write, {"a: cannot be put in place: Input/output"});
  expect_fault(failing("rename", EXDEV), write, {"a: cannot be put in place: Invalid cross"});
  EXPECT_EQ(read_file(file_), "text");
  EXPECT_FALSE(fs::exists(folder_ / "a.tmp"));
  const std::string name = folder_.path().filename();
  expect_fault(failing("fsync", EIO, name), write, {name, "folder cannot be written to disk"});
  const FaultyCalls no_sync(failing("fsync", EINVAL, name));
  EXPECT_NO_THROW(write()) << "some network file systems have no fsync for folders";
}

TEST_F(SystemErrors, AFileWithoutAFolderIsInTheCurrentOne) {
  const fs::path before = fs::current_path();
  fs::current_path(folder_.path());
  EXPECT_NO_THROW(write_file_atomically("b", "text"));
  fs::current_path(before);
  EXPECT_EQ(read_file(folder_ / "b"), "text");
}

TEST_F(SystemErrors, ReplaceDirectory) {
  const fs::path from = folder_ / "new", to = folder_ / "place", old = folder_ / "place.old";
  write_file(from / "a", "new");
  write_file(to / "a", "text");
  write_file(old / "a", "older");
  const auto replace = [&] { replace_directory(from, to); };
  const auto no_exchange = [](const std::string& call, int reason) {
    return [=](const std::string& name, const std::string&) {
      return name == "renameat2" ? EINVAL : name == call ? reason : 0;
    };
  };
  expect_fault(no_exchange("unlinkat", EPERM), replace, {"place.old: cannot be removed"});
  expect_fault(no_exchange("rename", EIO), replace, {"place.old: cannot be put in place"});
  EXPECT_EQ(read_file(to / "a"), "text");
  write_file(old / "a", "older");
  expect_fault(failing("unlinkat", EPERM), [&] { restore_replaced(old); },
               {"place.old: cannot be removed"});
}

TEST_F(SystemErrors, AtomicFolder) {
  write_file(folder_ / "new.quern.tmp" / "half", "left over");
  expect_fault(failing("remove", EPERM), [&] { AtomicFolder(folder_ / "new", "test"); },
               {"new.quern.tmp/half: cannot be removed"});
}

TEST_F(SystemErrors, ByteStream) {
  char out[8];
  expect_error([&] { open_byte_stream(folder_ / "no"); }, {"no: cannot be opened"});
  const auto read = [&] { open_byte_stream(file_)->read(out, sizeof out); };
  expect_fault(failing("open", EMFILE, "a"), read, {"a: cannot be opened: Too many open files"});
  expect_fault(failing("read", EIO, "a"), read, {"a: cannot be read: Input/output"});
  const auto skip = [&] { return open_byte_stream(file_)->skip(2); };
  expect_fault(failing("lseek", EIO, "a"), skip, {"a: cannot be read at byte 0"});
  {
    const FaultyCalls no_status(failing("fstat", EIO, "a"));
    EXPECT_EQ(skip(), 2) << "reads instead of seeking";
  }
  int reads = 0;
  const FaultyCalls interrupted([&](const std::string& call, const std::string& path) {
    return call == "read" && path == file_ && ++reads == 2 ? EINTR
                                                           : 0;  // the first finds the format
  });
  read();
  EXPECT_EQ(reads, 3);
}

TEST_F(SystemErrors, FileLock) {
  const fs::path place = folder_ / "place";
  const auto lock = [&] { FileLock::of_folder(place, "busy"); };
  expect_error([&] { FileLock(folder_ / "no" / "lock", "busy"); }, {"no/lock: cannot be opened"});
  expect_error([&] { FileLock::of_folder(file_ / "b", "busy"); }, {"a/b: cannot be created"});
  expect_fault(failing("open", EMFILE, "place"), lock, {"place: cannot be opened"});
  expect_fault(failing("fstat", EIO, "place"), lock, {"busy"});
  const auto meanwhile = [&](const std::function<void()>& work) {
    return [work](const std::string& call, const std::string&) {
      if (call == "flock") work();
      return 0;
    };
  };
  const fs::path aside = folder_ / "aside";
  expect_fault(meanwhile([&] { fs::rename(place, aside); }), lock, {"busy"});
  expect_fault(meanwhile([&] {
                 fs::rename(place, aside);
                 fs::create_directory(place);
               }),
               lock, {"busy"});
  const FaultyCalls no_locks(failing("flock", ENOLCK));
  EXPECT_NO_THROW(lock()) << "file systems without locks count as locked";
}

TEST_F(SystemErrors, ALockMoves) {
  FileLock first(folder_ / "first", "busy"), second(folder_ / "second", "busy");
  second = std::move(first);
  const FileLock third = std::move(second);
  EXPECT_THROW(FileLock(folder_ / "first", "busy"), Error);
}

TEST_F(SystemErrors, MappedFile) {
  const auto open = [&] { MappedFile::open(file_); };
  expect_fault(failing("fstat", EIO, "a"), open, {"a: Input/output error"});
  const MappedFile file = MappedFile::open(file_);
  EXPECT_NO_THROW(file.check_unchanged());
  fs::last_write_time(file_, fs::last_write_time(file_) + std::chrono::hours(1));
  expect_error([&] { file.check_unchanged(); }, {"a: was written to while it is in use"});
  write_file(file_, "longer text");
  expect_error([&] { file.check_unchanged(); }, {"a: has 11 bytes now, expected the 4"});
  fs::rename(file_, folder_ / "b");
  EXPECT_NO_THROW(file.check_unchanged()) << "a file that is gone is still whole here";
  write_file(file_, "another");
  EXPECT_NO_THROW(file.check_unchanged()) << "another file has its name";
  fs::remove(file_);
  fs::create_symlink("/proc/self/status", file_);
  EXPECT_NO_THROW(file.check_unchanged()) << "on another device";
}

// Files of 4 TiB without blocks: the address space of 128 TiB ends before the 40th.
TEST_F(SystemErrors, AMappingThatDoesNotFit) {
  std::error_code error;
  fs::resize_file(file_, uintmax_t{1} << 42, error);
  if (error) GTEST_SKIP() << "this file system has no sparse files of 4 TiB";
  std::vector<MappedFile> files;
  expect_error(
      [&] {
        for (int i = 0; i < 40; ++i) files.push_back(MappedFile::open(file_));
      },
      {"a: cannot be mapped: Cannot allocate memory"});
}

TEST_F(SystemErrors, SmallFile) {
  const auto read = [&] { read_if_there(file_); };
  expect_fault(failing("open", EACCES, "a"), read, {"a: cannot be read: Permission denied"});
  expect_fault(failing("fstat", EIO, "a"), read, {"a: cannot be read: Input/output"});
  expect_fault(failing("read", EIO, "a"), read, {"a: cannot be read: Input/output"});
}

TEST_F(SystemErrors, InputFiles) {
  expect_error([&] { files_below(folder_ / "no"); }, {"no: folder cannot be read: No such file"});
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(files_below(folder_.path()), std::vector<fs::path>{file_}) << "without the pipe";
  fs::create_symlink("pipe", folder_ / "link");
  expect_error([&] { files_below(folder_.path()); }, {"link: is not a regular file"});
}

}  // namespace
}  // namespace quern
