// `quern bench dtypes`: the dtype of every tensor of a training step, read during a real forward
// and backward. Shows which tensors mixed precision keeps in FP32.
#pragma once

#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/enum_names.h"
#include "base/shape.h"
#include "bench/table.h"
#include "nn/options.h"

namespace quern {

// toy: Linear, ReLU, LayerNorm, Linear, cross-entropy. lm: a TransformerLM of two blocks.
enum class DtypeModel { toy, lm };

template <>
inline constexpr std::array kNamesOf<DtypeModel>{"toy", "lm"};

// input: of the step. parameter: as the optimizer sees it, FP32. copy: the tensor that matrix
// products read instead of a parameter, if it is another one. activation: an op's output, named by
// its module path and op. logits, loss. gradient: of the tensor with that name.
struct DtypeEntry {
  std::string kind, name;
  Shape shape;
  DType dtype = DType::f32;
};

// The tensors of one forward and backward on the current Context's device, in creation order.
// Gradients of activations come in backward order, those of parameters last.
std::vector<DtypeEntry> observe_dtypes(DtypeModel model, Precision precision,
                                       KernelKind kernels = KernelKind::fused);

// One tensor's dtypes under several precisions; empty where a precision has no such tensor.
struct DtypeRow {
  DtypeModel model = DtypeModel::toy;
  std::string kind, name;
  Shape shape;
  std::vector<std::string> dtypes;
};

// Observes the model under each precision; equal tensors share a row.
std::vector<DtypeRow> bench_dtypes(DtypeModel model, const std::vector<Precision>& precisions,
                                   KernelKind kernels = KernelKind::fused);

// `precisions`: one for each of the row's dtypes.
TableRow table_row(const DtypeRow& row, const std::vector<Precision>& precisions);
// The lesson of the table, and its limit: TF32 is invisible in dtypes.
std::string dtype_lesson();

}  // namespace quern
