// Writes Python's pickle format, protocol 4: lists, dicts, strings, integers and booleans, in the
// opcodes that PyTorch's MemoryViz.js knows. (Python's pickletools.py documents the opcodes.)
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace quern {

class PickleWriter {
 public:
  PickleWriter();

  void boolean(bool value);
  void integer(int64_t value);
  void text(std::string_view value);  // UTF-8; equal texts are stored once

  // Between begin and end: a list's items, or a dict's alternating keys and values.
  void begin_list() { begin(true); }
  void begin_dict() { begin(false); }
  void end();
  void key(std::string_view name) { text(name); }
  void tuple(int64_t first, int64_t second);

  // The number of the value written last; again() writes that value again: Python gets one object.
  uint32_t remember();
  void again(uint32_t value);

  std::string take();  // the finished pickle, after one value

 private:
  struct Open {
    bool list = false;
    int64_t items = 0;  // since the last batch
  };

  void begin(bool list);
  void before_value();
  void byte(int value) { out_.push_back(static_cast<char>(value)); }
  void number(int opcode, uint64_t value, int bytes);

  std::string out_;
  std::vector<Open> open_;
  uint32_t remembered_ = 0;
  std::unordered_map<std::string, uint32_t> texts_;
};

}  // namespace quern
