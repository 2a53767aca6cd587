#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "bench/kernels.h"
#include "bench/rounded.h"

namespace quern {

namespace {

// As PyTorch names it.
const char* torch_name(DType dtype) {
  switch (dtype) {
    case DType::f32: return "float32";
    case DType::bf16: return "bfloat16";
    case DType::u8: return "uint8";
    default: fail(cat("bench kernels: dtype is ", dtype, ", expected f32, bf16 or u8"));
  }
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t extent : shape) text += cat(text.empty() ? "" : " x ", extent);
  return text;
}

}  // namespace

std::string kernel_table_head() {
  return fmt::format("{:<22} {:<7} {:<9} {:<20} {:>10} {:>10} {:>8} {:>7}\n", "kernel", "variant",
                     "dtype", "shape", "ms", "MB", "TB/s", "of copy");
}

std::string kernel_table_line(const KernelRow& row) {
  const std::string left = fmt::format("{:<22} {:<7} {:<9} {:<20}", row.kernel, row.variant,
                                       torch_name(row.dtype), shape_text(row.shape));
  if (!row.out_of_memory.empty()) return left + "  out of memory\n";
  return left + fmt::format(" {:>10.4f} {:>10.2f} {:>8.4f} {:>6.1f}%\n", row.time.median,
                            static_cast<double>(row.bytes) / 1e6, row.tb_per_second(),
                            100.0 * row.share());
}

std::string kernel_json(const KernelRow& row, const std::string& peer) {
  nlohmann::ordered_json json;
  json["peer"] = peer;
  json["kernel"] = row.kernel;
  json["variant"] = row.variant;
  if (row.out_of_memory.empty()) {
    json["ms"] = rounded(row.time.median, 4);
    json["tb_s"] = rounded(row.tb_per_second(), 4);
    json["share"] = rounded(row.share(), 4);
  } else {
    json["error"] = "OOM";
  }
  json["bytes"] = row.bytes;
  if (row.shape.size() > 1) {
    json["shape"] = row.shape;
  } else if (row.dtype != DType::u8) {
    json["params"] = row.shape.at(0);
  }
  if (row.dtype != DType::u8) json["dtype"] = torch_name(row.dtype);
  return json.dump();
}

}  // namespace quern
