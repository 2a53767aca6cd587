#include "kernels/cuda/primitives/tma.h"

#include <cudaTypedefs.h>

#include "base/error.h"
#include "kernels/cuda/primitives/driver_function.h"

namespace quern::kernels::cuda {

namespace {

constexpr int64_t kTmaAlignment = 16;
constexpr int64_t kTmaMaxExtent = int64_t{1} << 32;
constexpr int64_t kTmaMaxStride = int64_t{1} << 40;  // bytes
constexpr int64_t kBytes = sizeof(bfloat16);

CUtensorMapSwizzle swizzle_of(int columns) {
  switch (columns) {
    case 64: return CU_TENSOR_MAP_SWIZZLE_128B;
    case 32: return CU_TENSOR_MAP_SWIZZLE_64B;
    case 16: return CU_TENSOR_MAP_SWIZZLE_32B;
    default: fail(cat("tma: panels of ", columns, " columns, expected 16, 32 or 64"));
  }
}

// The stride in bytes. The stride of an extent of 1 is never used and may be anything, also a value
// that TMA refuses; a legal one replaces it.
cuuint64_t stride_bytes(int64_t stride, int64_t extent) {
  return static_cast<cuuint64_t>(extent == 1 ? kTmaAlignment : stride * kBytes);
}

// Encodes a map of `rank` dimensions, the fastest first, with a panel's `span` of columns.
CUresult encode(CUtensorMap& map, const bfloat16* x, cuuint32_t rank, const cuuint64_t* extents,
                const cuuint64_t* steps, const cuuint32_t* box, int span) {
  constexpr const char* kName = "cuTensorMapEncodeTiled";
  static const auto function = driver_function<PFN_cuTensorMapEncodeTiled_v12000>(kName, 12000);
  QUERN_CHECK(function != nullptr, "cuda: the driver has no ", kName,
              ", expected CUDA 12.0 or later");
  const cuuint32_t every[] = {1, 1, 1, 1, 1};
  return function(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank, const_cast<bfloat16*>(x), extents,
                  steps, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(span),
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

}  // namespace

bool tma_takes(const void* x, const int64_t (&strides)[3], int64_t B, int64_t T, int64_t heads,
               int64_t D) {
  const int64_t extents[] = {B, T, heads};
  if (reinterpret_cast<uintptr_t>(x) % kTmaAlignment != 0 || D < 8 || D % 8 != 0) return false;
  for (int i = 0; i < 3; ++i) {
    if (extents[i] < 1 || extents[i] > kTmaMaxExtent) return false;
    const int64_t bytes = strides[i] * kBytes;
    const bool legal = bytes > 0 && bytes < kTmaMaxStride && bytes % kTmaAlignment == 0;
    if (extents[i] > 1 && !legal) return false;
  }
  return true;
}

CUtensorMap make_tile_map(const bfloat16* x, const int64_t (&strides)[3], int64_t B, int64_t T,
                          int64_t heads, int64_t D, int rows, int columns) {
  // (column in its panel, token, panel, head, batch), the fastest first. An edge at D needs the
  // dimension of all columns instead, and tiles of one panel.
  QUERN_CHECK(D <= columns, "tma: D is ", D, ", expected at most the ", columns,
              " columns of a tile");
  const int span = panel_columns(columns);
  const bool padded = D < columns;
  const int64_t panels = padded ? 1 : D / span;
  const cuuint64_t extents[] = {static_cast<cuuint64_t>(padded ? D : span),
                                static_cast<cuuint64_t>(T), static_cast<cuuint64_t>(panels),
                                static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(B)};
  const cuuint64_t steps[] = {stride_bytes(strides[1], T), stride_bytes(span, panels),
                              stride_bytes(strides[2], heads), stride_bytes(strides[0], B)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(span), static_cast<cuuint32_t>(rows),
                            static_cast<cuuint32_t>(panels), 1, 1};
  CUtensorMap map;
  const CUresult status = encode(map, x, 5, extents, steps, box, span);
  QUERN_CHECK(status == CUDA_SUCCESS, "tma: no tensor map for B ", B, ", T ", T, ", heads ", heads,
              ", D ", D, ", tiles of ", rows, " x ", columns, ": driver error ",
              static_cast<int>(status));
  return map;
}

CUtensorMap make_panel_map(const MatrixStack& stack, int rows, int columns) {
  const int64_t pitch_bytes = stack.pitch * kBytes;
  const cuuint64_t extents[] = {static_cast<cuuint64_t>(stack.columns),
                                static_cast<cuuint64_t>(stack.rows),
                                static_cast<cuuint64_t>(stack.matrices)};
  const cuuint64_t steps[] = {static_cast<cuuint64_t>(pitch_bytes),
                              static_cast<cuuint64_t>(stack.rows * pitch_bytes)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(columns), static_cast<cuuint32_t>(rows), 1};
  CUtensorMap map;
  const CUresult status = encode(map, stack.x, 3, extents, steps, box, columns);
  QUERN_CHECK(status == CUDA_SUCCESS, "tma: no tensor map for ", stack.matrices, " matrices of ",
              stack.rows, " x ", stack.columns, ", pitch ", stack.pitch, ", panels of ", rows,
              " x ", columns, ": driver error ", static_cast<int>(status));
  return map;
}

}  // namespace quern::kernels::cuda
