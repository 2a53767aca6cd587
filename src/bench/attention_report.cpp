#include "base/error.h"
#include "bench/attention.h"
#include "bench/matmul_math.h"

namespace quern {

namespace {

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

Table attention_table(TableFormat format) {
  return Table({{"", "peer"},
                {"variant", "backend", 0, 11, Align::left},
                {"dtype", "dtype", 0, 5, Align::left},
                {"B", "B", 0, 3},
                {"H", "H", 0, 3},
                {"T", "T", 0, 6},
                {"D", "D", 0, 4},
                {"causal", "causal", 0, 6, Align::left},
                {"fwd ms", "fwd_ms", 4},
                {"bwd ms", "bwd_ms", 4},
                {"fwd TF/s", "fwd_tflops", 3, 9},
                {"bwd TF/s", "bwd_tflops", 3, 9},
                {"saved MiB", "saved_mib", 1},
                {"peak MiB", "peak_mib", 1}},
               format);
}

std::string attention_line(const Table& table, const AttentionRow& row, const std::string& peer) {
  const AttentionCase& s = row.shape;
  std::vector<Cell> cells{peer,
                          std::string(name_of(row.variant)),
                          std::string(name_of(row.precision)),
                          s.B,
                          s.H,
                          s.T,
                          s.D,
                          s.causal};
  if (!row.out_of_memory.empty()) return table.row(std::move(cells), &kOutOfMemory);
  cells.insert(cells.end(),
               {row.forward.median, row.backward.median, row.forward_tflops(),
                row.backward_tflops(), mebibytes(row.saved_bytes), mebibytes(row.peak_bytes)});
  return table.row(std::move(cells));
}

}  // namespace quern
