#include "profile/memory/pickle_writer.h"

#include <limits>

#include "base/error.h"

namespace quern {

namespace {

// Opcodes, by pickletools' names.
constexpr int kProto = 0x80, kStop = '.', kMark = '(';
constexpr int kNone = 'N', kNewTrue = 0x88, kNewFalse = 0x89;
constexpr int kBinInt1 = 'K', kBinInt2 = 'M', kBinInt = 'J', kLong1 = 0x8a;
constexpr int kShortBinUnicode = 0x8c, kBinUnicode = 'X';
constexpr int kEmptyList = ']', kAppends = 'e', kEmptyDict = '}', kSetItems = 'u', kTuple2 = 0x86;
constexpr int kMemoize = 0x94, kBinGet = 'h', kLongBinGet = 'j';

constexpr int kProtocol = 4;
constexpr int64_t kBatch = 1000;  // values between a MARK and its APPENDS or SETITEMS, as Python

}  // namespace

PickleWriter::PickleWriter() {
  byte(kProto);
  byte(kProtocol);
}

void PickleWriter::little_endian(uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) byte(static_cast<int>(value >> (8 * i) & 0xff));
}

// Batches are short because a reader puts a whole batch on its stack.
void PickleWriter::before_value() {
  if (open_.empty()) return;
  Open& open = open_.back();
  if (open.items == kBatch) {
    byte(open.list ? kAppends : kSetItems);
    byte(kMark);
    open.items = 0;
  }
  open.items += 1;
}

void PickleWriter::none() {
  before_value();
  byte(kNone);
}

void PickleWriter::boolean(bool value) {
  before_value();
  byte(value ? kNewTrue : kNewFalse);
}

void PickleWriter::integer(int64_t value) {
  before_value();
  using Int = std::numeric_limits<int32_t>;
  const auto bits = static_cast<uint64_t>(value);
  if (value >= 0 && value <= 0xff) {
    byte(kBinInt1);
    return little_endian(bits, 1);
  }
  if (value >= 0 && value <= 0xffff) {
    byte(kBinInt2);
    return little_endian(bits, 2);
  }
  if (value >= Int::min() && value <= Int::max()) {
    byte(kBinInt);
    return little_endian(bits, 4);
  }
  byte(kLong1);
  byte(8);
  little_endian(bits, 8);
}

void PickleWriter::text(std::string_view value) {
  const auto [found, added] = texts_.emplace(value, remembered_);
  if (!added) return again(found->second);
  before_value();
  const bool is_short = value.size() <= 0xff;
  byte(is_short ? kShortBinUnicode : kBinUnicode);
  little_endian(value.size(), is_short ? 1 : 4);
  out_ += value;
  remember();
}

void PickleWriter::begin_list() {
  before_value();
  byte(kEmptyList);
  byte(kMark);
  open_.push_back({true, 0});
}

void PickleWriter::begin_dict() {
  before_value();
  byte(kEmptyDict);
  byte(kMark);
  open_.push_back({false, 0});
}

void PickleWriter::end() {
  QUERN_CHECK(!open_.empty(), "pickle: no list or dict is open");
  byte(open_.back().list ? kAppends : kSetItems);
  open_.pop_back();
}

void PickleWriter::tuple(int64_t first, int64_t second) {
  before_value();
  open_.push_back({});  // its elements do not count as items of the open container
  integer(first);
  integer(second);
  open_.pop_back();
  byte(kTuple2);
}

uint32_t PickleWriter::remember() {
  byte(kMemoize);
  return remembered_++;
}

void PickleWriter::again(uint32_t number) {
  before_value();
  const bool is_short = number <= 0xff;
  byte(is_short ? kBinGet : kLongBinGet);
  little_endian(number, is_short ? 1 : 4);
}

std::string PickleWriter::take() {
  QUERN_CHECK(open_.empty(), "pickle: a list or dict is still open");
  byte(kStop);
  return std::move(out_);
}

}  // namespace quern
