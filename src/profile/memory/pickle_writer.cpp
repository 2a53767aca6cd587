#include "profile/memory/pickle_writer.h"

#include <limits>

#include "base/error.h"

namespace quern {

namespace {

// Opcodes, by pickletools' names.
constexpr int kProto = 0x80, kStop = '.', kMark = '(';
constexpr int kNewTrue = 0x88, kNewFalse = 0x89;
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

// The opcode, and the number in little endian.
void PickleWriter::number(int opcode, uint64_t value, int bytes) {
  byte(opcode);
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

void PickleWriter::boolean(bool value) {
  before_value();
  byte(value ? kNewTrue : kNewFalse);
}

void PickleWriter::integer(int64_t value) {
  before_value();
  using Int = std::numeric_limits<int32_t>;
  const auto bits = static_cast<uint64_t>(value);
  if (bits <= 0xff) return number(kBinInt1, bits, 1);
  if (bits <= 0xffff) return number(kBinInt2, bits, 2);
  if (value >= Int::min() && value <= Int::max()) return number(kBinInt, bits, 4);
  byte(kLong1);
  number(8, bits, 8);
}

void PickleWriter::text(std::string_view value) {
  const auto [found, added] = texts_.emplace(value, remembered_);
  if (!added) return again(found->second);
  before_value();
  const bool is_short = value.size() <= 0xff;
  number(is_short ? kShortBinUnicode : kBinUnicode, value.size(), is_short ? 1 : 4);
  out_ += value;
  remember();
}

void PickleWriter::begin(bool list) {
  before_value();
  byte(list ? kEmptyList : kEmptyDict);
  byte(kMark);
  open_.push_back({list, 0});
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

void PickleWriter::again(uint32_t value) {
  before_value();
  const bool is_short = value <= 0xff;
  number(is_short ? kBinGet : kLongBinGet, value, is_short ? 1 : 4);
}

std::string PickleWriter::take() {
  QUERN_CHECK(open_.empty(), "pickle: a list or dict is still open");
  byte(kStop);
  return std::move(out_);
}

}  // namespace quern
