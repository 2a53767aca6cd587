#include "optim/muon.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/gemm.h"
#include "tensor/visit.h"

namespace quern {

namespace {

constexpr int64_t kAlignment = 128;  // elements: 256 bytes of BF16

int64_t padded(int64_t elements) {
  return (elements + kAlignment - 1) / kAlignment * kAlignment;
}

Tensor workspace(int64_t elements, DType dtype) {
  return Tensor::empty({elements}, dtype, {"muon workspace", MemoryCategory::workspace});
}

double adjustment(MuonAdjust adjust, int64_t rows, int64_t cols) {
  const auto A = static_cast<double>(rows), B = static_cast<double>(cols);
  switch (adjust) {
    case MuonAdjust::original: return std::sqrt(std::max(1.0, A / B));
    case MuonAdjust::match_rms_adamw: return 0.2 * std::sqrt(std::max(A, B));
  }
  fail("muon: unknown adjustment");
}

bool is_hidden(const ParameterEntry& entry) {
  return entry.group.kind == ParameterKind::hidden_matrix && entry.shape.ndim() == 2;
}

// A product whose result is symmetric, (n, n) packed. Where n allows it the upper right quarter is
// a copy, which saves a quarter of the multiplications.
void symmetric_product(bfloat16* d, const bfloat16* a, const bfloat16* b, kernels::Gemm g,
                       const kernels::GemmResources& resources, auto stream) {
  constexpr int64_t kFewestRows = 512;  // smaller products do not fill a GPU's tiles
  const int64_t n = g.n, half = n / 2;
  if (n < kFewestRows || n % kernels::kMuonMirrorMultiple != 0) {
    return gemm(d, a, b, g, resources, stream);
  }
  g.lda = g.transpose_a ? n : g.k;
  g.ldb = g.transpose_b ? g.k : n;
  g.ldd = n;
  kernels::Gemm top_left = g, bottom = g;
  top_left.m = top_left.n = bottom.m = half;
  if (g.c != nullptr) bottom.c = static_cast<const bfloat16*>(g.c) + half * n;
  gemm(d, a, b, top_left, resources, stream);
  gemm(d + half * n, a + half * (g.transpose_a ? 1 : g.lda), b, bottom, resources, stream);
  muon_mirror(d, n, g.batch, g.stride_d, stream);
}

}  // namespace

Muon::Muon(ParameterArena& arena, const MuonOptions& options)
    : Optimizer(arena, options.adamw.guard()),
      options_(options),
      moments_(arena, options.adamw,
               [](const ParameterEntry& entry) { return !is_hidden(entry); }) {
  for (const ParameterEntry& entry : arena.table().entries()) {
    if (entry.group.frozen || !is_hidden(entry)) continue;
    for (const NamedSlice& slice : entry.slices()) add_matrix(entry.group, slice);
  }
  int64_t size = 0;
  for (Group& group : groups_) {
    group.first = size;
    group.table = upload_table(group.matrices, "muon matrices");
    size += group.count() * group.stride;
  }
  momentum_ = zero_state(arena, size, "muon momentum");
}

void Muon::add_matrix(const ParameterGroup& treatment, const NamedSlice& slice) {
  const int64_t rows = slice.shape[0], cols = slice.shape[1];
  auto group = std::ranges::find_if(
      groups_, [&](const Group& g) { return g.rows == rows && g.cols == cols; });
  if (group == groups_.end()) {
    Group added;
    added.rows = rows, added.cols = cols, added.stride = padded(rows * cols);
    group = groups_.insert(groups_.end(), added);
  }
  group->names.push_back(slice.name);
  group->matrices.push_back(
      {slice.begin, static_cast<float>(treatment.lr_scale * options_.lr_scale),
       static_cast<float>(adjustment(options_.adjust, rows, cols)),
       static_cast<float>(treatment.decay ? options_.adamw.weight_decay : 0.0)});
}

std::vector<OptimizerBuffer> Muon::buffers() const {
  std::vector<OptimizerBuffer> buffers = moments_.buffers();
  OptimizerBuffer momentum{"momentum.", momentum_};
  for (const Group& group : groups_) {
    for (int64_t i = 0; i < group.count(); ++i) {
      momentum.slices.push_back({group.names[static_cast<size_t>(i)],
                                 {group.rows, group.cols},
                                 group.first + i * group.stride});
    }
  }
  buffers.push_back(momentum);
  return buffers;
}

void Muon::fused_update() {
  moments_.fused_update(state_data());
  for (const Group& group : groups_) {
    const int64_t most = std::max<int64_t>(1, options_.most_elements / group.stride);
    for (int64_t begin = 0; begin < group.count(); begin += most) {
      update_matrices(group, begin, std::min(begin + most, group.count()));
    }
  }
}

void Muon::update_matrices(const Group& group, int64_t begin, int64_t end) {
  const kernels::MuonGroup part{
      static_cast<const kernels::MuonMatrix*>(group.table.raw_data()) + begin, end - begin,
      group.rows * group.cols, group.stride};
  float* const momentum = momentum_.data<float>() + group.first + begin * group.stride;
  const Tensor x = workspace(part.count * group.stride, DType::bf16);
  const Tensor squares = workspace(part.count * kernels::kMuonParts, DType::f32);
  on_device(x.device(), [&](auto stream) {
    muon_momentum(x.data<bfloat16>(), squares.data<float>(), momentum,
                  arena().grads().data<float>(), part, static_cast<float>(options_.momentum),
                  options_.nesterov, state_data(), stream);
    muon_normalize(x.data<bfloat16>(), squares.data<float>(), part,
                   static_cast<float>(options_.eps), stream);
  });
  const Tensor change =
      orthogonalize(x, {group.rows, group.cols, part.count, group.stride}, options_.iteration);
  const Tensor& copies = arena().copies();
  on_device(x.device(), [&](auto stream) {
    muon_update(arena().values().data<float>(),
                copies.defined() ? copies.data<bfloat16>() : nullptr, change.data<bfloat16>(), part,
                state_data(), stream);
  });
}

// With G = X X^T of a wide X, or X^T X of a tall one: X = a X + P X, or a X + X P, P = b G + c G G.
Tensor orthogonalize(const Tensor& x, const MatrixBatch& batch, const NewtonSchulz& options) {
  const bool wide = batch.rows <= batch.cols;
  const int64_t inner = std::min(batch.rows, batch.cols), gram_stride = padded(inner * inner);
  kernels::Gemm gram;
  gram.m = gram.n = inner, gram.k = std::max(batch.rows, batch.cols);
  gram.transpose_a = !wide, gram.transpose_b = wide;
  gram.batch = batch.count;
  gram.stride_a = gram.stride_b = batch.stride, gram.stride_d = gram_stride;
  kernels::Gemm polynomial = gram;
  polynomial.k = inner;
  polynomial.transpose_a = polynomial.transpose_b = false;
  polynomial.stride_a = polynomial.stride_b = gram_stride;
  polynomial.alpha = options.c, polynomial.beta = options.b;
  kernels::Gemm product = polynomial;
  product.m = batch.rows, product.n = batch.cols;
  product.stride_a = wide ? gram_stride : batch.stride;
  product.stride_b = wide ? batch.stride : gram_stride;
  product.stride_d = batch.stride;
  product.alpha = 1.0, product.beta = options.a;

  kernels::GemmResources resources = Context::current().gemm();
  for (const kernels::Gemm& each : {gram, polynomial, product}) {
    resources.scratch_bytes = std::max(
        resources.scratch_bytes,
        decide(x.device(), [&](auto stream) { return gemm_scratch(each, DType::bf16, stream); }));
  }
  const Tensor packed =
      resources.scratch_bytes > 0 ? workspace(resources.scratch_bytes, DType::u8) : Tensor();
  if (packed.defined()) resources.scratch = packed.raw_data();
  const Tensor g = workspace(batch.count * gram_stride, DType::bf16);
  const Tensor p = workspace(batch.count * gram_stride, DType::bf16);
  Tensor from = x, to = workspace(x.numel(), DType::bf16);
  on_device(x.device(), [&](auto stream) {
    auto *const G = g.data<bfloat16>(), *const P = p.data<bfloat16>();
    for (int i = 0; i < options.iterations; ++i) {
      const auto* const X = from.data<bfloat16>();
      polynomial.c = G, product.c = X;
      symmetric_product(G, X, X, gram, resources, stream);
      symmetric_product(P, G, G, polynomial, resources, stream);
      gemm(to.data<bfloat16>(), wide ? P : X, wide ? X : P, product, resources, stream);
      std::swap(from, to);
    }
  });
  return from;
}

}  // namespace quern
