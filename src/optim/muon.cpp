#include "optim/muon.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/round_up.h"
#include "kernels/gemm.h"
#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern {

namespace {

constexpr int64_t kAlignment = 128;  // elements: 256 bytes of BF16

int64_t padded(int64_t elements) {
  return round_up(elements, kAlignment);
}

Tensor workspace(int64_t elements, DType dtype = DType::bf16) {
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

void copy_parts(const Tensor& to, const Tensor& from, const kernels::MuonCopies& copies) {
  on_device(to.device(), [&](auto stream) {
    muon_copy(to.data<bfloat16>(), from.data<bfloat16>(), copies, stream);
  });
}

}  // namespace

bool has_momentum(const ParameterEntry& entry) {
  return entry.group.kind == ParameterKind::hidden_matrix && entry.shape.ndim() == 2;
}

template <class Row>
Muon::Table<Row>::Table(const std::vector<Row>& rows) {
  if (rows.empty()) return;
  memory = upload_table(rows, {"muon matrices", MemoryCategory::optimizer});
  this->rows = static_cast<const Row*>(memory.raw_data());
  this->count = std::ssize(rows);
  for (const Row& row : rows) this->most = std::max(this->most, row.numel);
}

Muon::Muon(ParameterArena& arena, const MuonOptions& options, MuonExchange exchange)
    : Optimizer(arena, options.adamw.guard()),
      options_(options),
      exchange_(std::move(exchange)),
      moments_(arena, options.adamw,
               [](const ParameterEntry& entry) { return !has_momentum(entry); }),
      layout_(arena, has_momentum) {
  QUERN_CHECK(!arena.is_shared_out() || exchange_,
              "muon: ranks share out the weights, but there is no exchange between them");
  for (const ParameterEntry& entry : arena.table().entries()) {
    if (entry.group.frozen || !has_momentum(entry)) continue;
    for (const NamedSlice& slice : entry.slices()) {
      const int64_t rows = slice.shape[0], cols = slice.shape[1];
      matrices_.push_back(
          {slice, static_cast<float>(entry.group.lr_scale * options_.lr_scale),
           static_cast<float>(adjustment(options_.adjust, rows, cols)),
           static_cast<float>(entry.group.decay ? options_.adamw.weight_decay : 0.0)});
    }
  }
  const int64_t limit = options_.most_elements * std::max<int64_t>(1, ranks());
  const std::span<const Matrix> all = matrices_;
  for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    for (int64_t size = 0; end < all.size(); ++end) {
      size += padded(all[end].slice.shape.numel());
      if (size > limit && end > begin) break;
    }
    rounds_.push_back(round_of(all.subspan(begin, end - begin)));
  }
  momentum_ = zero_state(arena, layout_.size(), "muon momentum");
}

Muon::Round Muon::round_of(std::span<const Matrix> matrices) const {
  std::vector<std::vector<Matrix>> by_shape;
  for (const Matrix& matrix : matrices) {
    auto alike = std::ranges::find_if(by_shape, [&](const std::vector<Matrix>& others) {
      return others[0].slice.shape == matrix.slice.shape;
    });
    if (alike == by_shape.end()) alike = by_shape.emplace(by_shape.end());
    alike->push_back(matrix);
  }
  Round round;
  for (const std::vector<Matrix>& alike : by_shape) round.groups.push_back(group_of(alike));
  if (ranks() > 0) share_out(round, by_shape);
  return round;
}

Muon::Group Muon::group_of(const std::vector<Matrix>& matrices) const {
  const Shape& shape = matrices[0].slice.shape;
  Group group;
  group.rows = shape[0], group.cols = shape[1], group.stride = padded(shape.numel());
  group.like = std::ranges::count(
      matrices_, shape, [](const Matrix& matrix) -> const Shape& { return matrix.slice.shape; });
  std::vector<kernels::MuonMatrix> rows;
  for (const Matrix& matrix : owned(matrices, arena().layout().rank)) {
    const int64_t x = std::ssize(rows) * group.stride, begin = matrix.slice.begin;
    rows.push_back(ranks() > 0 ? kernels::MuonMatrix{.x = x, .numel = shape.numel()}
                               : part_of(matrix, begin, begin + shape.numel(), x));
  }
  group.matrices = Matrices(rows);
  return group;
}

// A rank makes adjacent ones of the matrices of one shape orthogonal, the first rank the most: the
// memory of that one is predicted.
std::span<const Muon::Matrix> Muon::owned(const std::vector<Matrix>& matrices, int64_t rank) const {
  const int64_t n = std::ssize(matrices), N = std::max<int64_t>(1, ranks());
  const int64_t begin = ceil_div(rank * n, N), end = ceil_div((rank + 1) * n, N);
  return std::span(matrices).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

// At rank p's place a rank has what it sends to p, its parts of p's matrices, and after the
// exchange p's parts of its own. Both lie in the order of the groups and their matrices.
void Muon::share_out(Round& round, const std::vector<std::vector<Matrix>>& matrices) const {
  // Calls f(group, index in it, matrix, begin, end, place) for what `holder` has of the matrices of
  // `owner`. Returns the elements of these places.
  const auto for_parts = [&](int64_t holder, int64_t owner, const auto& f) {
    const Placement& share = arena().layout().shares[static_cast<size_t>(holder)];
    int64_t place = 0;
    for (size_t g = 0; g < matrices.size(); ++g) {
      for (int64_t i = 0; const Matrix& matrix : owned(matrices[g], owner)) {
        const int64_t first = matrix.slice.begin;
        share.for_each_part(first, first + matrix.slice.shape.numel(),
                            [&](int64_t begin, int64_t end, int64_t) {
                              f(g, i, matrix, begin, end, place);
                              place += padded(end - begin);
                            });
        ++i;
      }
    }
    return place;
  };
  for (int64_t owner = 0; owner < ranks(); ++owner) {
    const bool none = std::ranges::all_of(
        matrices, [&](const std::vector<Matrix>& alike) { return owned(alike, owner).empty(); });
    if (none) continue;  // as most of thousands of ranks
    for (int64_t holder = 0; holder < ranks(); ++holder) {
      round.each = std::max(round.each, for_parts(holder, owner, [](auto&&...) {}));
    }
  }
  std::vector<kernels::MuonMatrix> parts;
  std::vector<std::vector<kernels::MuonCopy>> unpacks(matrices.size());
  const int64_t me = arena().layout().rank;
  for (int64_t other = 0; other < ranks(); ++other) {
    for_parts(me, other,
              [&](size_t, int64_t, const Matrix& matrix, int64_t begin, int64_t end, int64_t at) {
                parts.push_back(part_of(matrix, begin, end, other * round.each + at));
              });
    for_parts(
        other, me,
        [&](size_t g, int64_t i, const Matrix& matrix, int64_t begin, int64_t end, int64_t at) {
          const int64_t outside = other * round.each + at, numel = end - begin;
          const int64_t x = i * round.groups[g].stride + begin - matrix.slice.begin;
          unpacks[g].push_back({.to = x, .from = outside, .numel = numel});
        });
  }
  round.parts = Matrices(parts);
  for (size_t g = 0; g < matrices.size(); ++g) {
    round.groups[g].unpacks = Copies(unpacks[g]);
    for (kernels::MuonCopy& copy : unpacks[g]) std::swap(copy.to, copy.from);
    round.groups[g].packs = Copies(unpacks[g]);
  }
}

// Elements [begin, end) of the arena, a part of the matrix that this rank has.
kernels::MuonMatrix Muon::part_of(const Matrix& matrix, int64_t begin, int64_t end,
                                  int64_t x) const {
  const ArenaLayout& layout = arena().layout();
  return {.weight = layout.values.of(begin),
          .grad = layout.sums.of(begin),
          .momentum = layout_.places.of(begin),
          .x = x,
          .numel = end - begin,
          .lr_scale = matrix.lr_scale,
          .adjust = matrix.adjust,
          .decay = matrix.decay};
}

std::vector<OptimizerBuffer> Muon::buffers() const {
  std::vector<OptimizerBuffer> buffers = moments_.buffers();
  buffers.push_back(layout_.buffer("momentum.", momentum_));
  return buffers;
}

void Muon::fused_update() {
  moments_.fused_update(state_data());
  for (const Round& round : rounds_) {
    if (ranks() > 0) {
      update(round);
    } else {
      for (const Group& group : round.groups) update(group);
    }
  }
}

void Muon::update(const Group& group) const {
  const Tensor x = workspace(group.matrices.count * group.stride);
  read_momentum(x, group.matrices);
  change_weights(orthogonal(group, x), group.matrices);
}

// The ranks exchange their parts of matrices for the same parts of orthogonal ones.
void Muon::update(const Round& round) const {
  const Tensor parts = workspace(ranks() * round.each), received = workspace(parts.numel());
  const auto exchange = [&](const Tensor& to, const Tensor& from) {
    constexpr int64_t kPair = sizeof(float) / sizeof(bfloat16);
    exchange_(static_cast<float*>(to.raw_data()), static_cast<const float*>(from.raw_data()),
              round.each / kPair, "the hidden matrices");
  };
  read_momentum(parts, round.parts);
  exchange(received, parts);
  for (const Group& group : round.groups) {
    if (group.matrices.count == 0) continue;
    const Tensor x = workspace(group.matrices.count * group.stride);
    copy_parts(x, received, group.unpacks);
    copy_parts(received, orthogonal(group, x), group.packs);
  }
  exchange(parts, received);
  change_weights(parts, round.parts);
}

void Muon::read_momentum(const Tensor& x, const Matrices& matrices) const {
  on_device(x.device(), [&](auto stream) {
    muon_momentum(x.data<bfloat16>(), momentum_.data<float>(), arena().sums().data<float>(),
                  matrices, static_cast<float>(options_.momentum), options_.nesterov, state_data(),
                  stream);
  });
}

void Muon::change_weights(const Tensor& x, const Matrices& matrices) const {
  on_device(x.device(), [&](auto stream) {
    muon_update(arena().weight_arrays(), x.data<bfloat16>(), matrices, state_data(), stream);
  });
}

// The matrices of x made orthogonal; x is overwritten.
Tensor Muon::orthogonal(const Group& group, const Tensor& x) const {
  const Matrices& matrices = group.matrices;
  const Tensor squares = workspace(matrices.count * kernels::kMuonParts, DType::f32);
  on_device(x.device(), [&](auto stream) {
    muon_squares(squares.data<float>(), x.data<bfloat16>(), matrices, stream);
    muon_normalize(x.data<bfloat16>(), squares.data<float>(), matrices,
                   static_cast<float>(options_.eps), stream);
  });
  return orthogonalize(x, {group.rows, group.cols, matrices.count, group.stride, group.like},
                       options_.iteration);
}

// With G = X X^T of a wide X, or X^T X of a tall one: X = a X + P X, or a X + X P, P = b G + c G G.
Tensor orthogonalize(const Tensor& x, const MatrixBatch& batch, const NewtonSchulz& options) {
  const bool wide = batch.rows <= batch.cols;
  const int64_t inner = std::min(batch.rows, batch.cols), gram_stride = padded(inner * inner);
  kernels::Gemm gram;
  gram.m = gram.n = inner, gram.k = std::max(batch.rows, batch.cols);
  gram.transpose_a = !wide, gram.transpose_b = wide;
  gram.batch = batch.count;
  gram.batch_like = batch.like;
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
  const Tensor g = workspace(batch.count * gram_stride);
  const Tensor p = workspace(batch.count * gram_stride);
  Tensor from = x, to = workspace(x.numel());
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
