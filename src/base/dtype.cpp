#include "base/dtype.h"

#include <iterator>
#include <ostream>

#include "base/error.h"

namespace quern {

namespace {

struct Facts {
  size_t size;
  std::string_view name;
};
constexpr Facts kFacts[] = {{4, "f32"}, {2, "bf16"}, {2, "f16"}, {8, "f64"}, {4, "i32"},
                            {8, "i64"}, {2, "u16"},  {1, "u8"},  {1, "bool"}};  // as in DType

const Facts& facts_of(DType dtype, const char* caller) {
  const auto i = static_cast<size_t>(dtype);
  QUERN_CHECK(i < std::size(kFacts), caller, ": unknown dtype");
  return kFacts[i];
}

}  // namespace

size_t size_of(DType dtype) {
  return facts_of(dtype, "size_of").size;
}

std::string_view name_of(DType dtype) {
  return facts_of(dtype, "name_of").name;
}

bool is_floating(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f64;
}

std::ostream& operator<<(std::ostream& out, DType dtype) {
  return out << name_of(dtype);
}

}  // namespace quern
