#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "bench/attention.h"
#include "bench/rounded.h"

namespace quern {

namespace {

// As torch_attention.py names it.
const char* precision_name(Precision precision) {
  switch (precision) {
    case Precision::bf16: return "bf16";
    case Precision::fp32: return "fp32";
    case Precision::tf32: return "tf32";
  }
  fail("bench attention: unknown precision");
}

double mebibytes(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

}  // namespace

const char* name_of(AttentionGrid grid) {
  switch (grid) {
    case AttentionGrid::model: return "model";
    case AttentionGrid::course: return "course";
  }
  fail("bench attention: unknown grid");
}

const char* name_of(AttentionVariant variant) {
  switch (variant) {
    case AttentionVariant::naive: return "naive";
    case AttentionVariant::naive_graph: return "naive_graph";
    case AttentionVariant::flash: return "flash";
    case AttentionVariant::portable: return "portable";
  }
  fail("bench attention: unknown variant");
}

std::string attention_table_head() {
  return fmt::format(
      "{:<11} {:<5} {:>3} {:>3} {:>6} {:>4} {:<6} {:>10} {:>10} {:>9} {:>9} {:>10} "
      "{:>10}\n",
      "variant", "dtype", "B", "H", "T", "D", "causal", "fwd ms", "bwd ms", "fwd TF/s", "bwd TF/s",
      "saved MiB", "peak MiB");
}

std::string attention_table_line(const AttentionRow& row) {
  const AttentionCase& s = row.shape;
  const std::string left =
      fmt::format("{:<11} {:<5} {:>3} {:>3} {:>6} {:>4} {:<6}", name_of(row.variant),
                  precision_name(row.precision), s.B, s.H, s.T, s.D, s.causal ? "yes" : "no");
  if (!row.out_of_memory.empty()) return left + "  out of memory\n";
  return left + fmt::format(" {:>10.4f} {:>10.4f} {:>9.2f} {:>9.2f} {:>10.1f} {:>10.1f}\n",
                            row.forward.median, row.backward.median, row.forward_tflops(),
                            row.backward_tflops(), mebibytes(row.saved_bytes),
                            mebibytes(row.peak_bytes));
}

std::string attention_json(const AttentionRow& row, const std::string& peer) {
  nlohmann::ordered_json json;
  json["peer"] = peer;
  json["backend"] = name_of(row.variant);
  json["dtype"] = precision_name(row.precision);
  json["B"] = row.shape.B;
  json["H"] = row.shape.H;
  json["T"] = row.shape.T;
  json["D"] = row.shape.D;
  json["causal"] = row.shape.causal;
  if (!row.out_of_memory.empty()) {
    json["error"] = "OOM";
    return json.dump();
  }
  json["fwd_ms"] = rounded(row.forward.median, 4);
  json["bwd_ms"] = rounded(row.backward.median, 4);
  json["fwd_tflops"] = rounded(row.forward_tflops(), 3);
  json["bwd_tflops"] = rounded(row.backward_tflops(), 3);
  json["saved_mib"] = rounded(mebibytes(row.saved_bytes), 1);
  json["peak_mib"] = rounded(mebibytes(row.peak_bytes), 1);
  return json.dump();
}

}  // namespace quern
