#include "base/error.h"
#include "bench/kernels.h"

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

double millions(int64_t count) {
  return static_cast<double>(count) / 1e6;
}

}  // namespace

Table kernel_table(TableFormat format) {
  return Table({{"", "peer"},
                {"kernel", "kernel", 0, 22, Align::left},
                {"variant", "variant", 0, 7, Align::left},
                {"dtype", "dtype", 0, 8, Align::left},
                {"shape", "", 0, 20, Align::left},
                {"", "bytes"},
                {"", "shape"},
                {"", "params"},
                {"", "reads"},
                {"", "writes"},
                {"", "moved_bytes"},
                {"", "flops"},
                {"", "intensity", 4},
                {"ms", "ms", 4},
                {"MB", "", 2, 9},
                {"TB/s", "tb_s", 4, 7},
                {"% copy", "", 1, 6},
                {"", "share", 4},
                {"M reads", "", 2, 9},
                {"M writes", "", 2, 9},
                {"moved MB", "", 2, 9},
                {"MFLOP", "", 2},
                {"FLOP/B", "", 3, 7},
                {"TFLOP/s", "tflops", 4, 8},
                {"% roof", "", 1, 6},
                {"", "roofline", 4}},
               format);
}

std::string kernel_line(const Table& table, const KernelRow& row, const std::string& peer) {
  const bool counts_bytes = row.dtype == DType::u8;  // the copy
  std::vector<Cell> cells{peer,
                          row.kernel,
                          row.variant,
                          counts_bytes ? Cell() : Cell(std::string(torch_name(row.dtype))),
                          row.shape,
                          row.bytes,
                          row.shape.size() > 1 ? Cell(row.shape) : Cell(),
                          row.shape.size() > 1 || counts_bytes ? Cell() : Cell(row.shape.at(0))};
  const std::optional<KernelAccount>& account = row.account;
  if (account) {
    cells.insert(cells.end(), {account->reads, account->writes, account->bytes, account->flops,
                               account->intensity()});
  } else {
    cells.resize(cells.size() + 5);
  }
  if (!row.out_of_memory.empty()) return table.row(std::move(cells), &kOutOfMemory);
  cells.insert(cells.end(), {row.time.median, millions(row.bytes), row.tb_per_second(),
                             100.0 * row.share(), row.share()});
  if (account) {
    cells.insert(cells.end(),
                 {millions(account->reads), millions(account->writes), millions(account->bytes),
                  millions(account->flops), account->intensity(), row.tflops(),
                  100.0 * row.roofline_share(), row.roofline_share()});
  }
  return table.row(std::move(cells));
}

}  // namespace quern
