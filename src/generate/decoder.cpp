#include "generate/decoder.h"

#include "autograd/tape.h"
#include "base/error.h"
#include "base/slow_path.h"
#include "generate/decode_step.h"
#include "tensor/factory.h"

namespace quern {

using kernels::DecodeRow;
using kernels::SampleOptions;

namespace {

template <class T>
void write(const Tensor& destination, const T* values) {
  copy(destination,
       Tensor::borrow(const_cast<T*>(values), destination.shape(), destination.dtype(), kCpu));
}

}  // namespace

Decoder::Decoder(const TransformerLM& model, int64_t batch, int64_t capacity, Way way)
    : model_(model), batch_(batch), on_gpu_(Context::current().device().is_cuda()) {
  QUERN_CHECK(batch >= 1, "decoder: batch is ", batch, ", expected at least 1");
  QUERN_CHECK(capacity >= 1, "decoder: capacity is ", capacity, ", expected at least 1 token");
  cache_ = model.make_cache(batch, capacity);
  const int64_t V = model.config().vocab_size;
  rows_.resize(static_cast<size_t>(batch));
  row_state_ = Tensor::empty({batch, sizeof(DecodeRow)}, DType::u8, "decode rows");
  write(row_state_, rows_.data());
  tokens_ = zeros({batch}, DType::i32);
  seen_ = zeros({batch, (V + 31) / 32}, DType::i32);
  logits_ = Tensor::empty({batch, V}, model.options().activation_type(), "decode logits");
  // On the CPU the composed step has the faster kernels.
  if (way == Way::launched || (way == Way::automatic && on_gpu_)) {
    const std::string objection = DecodeStep::objection(model);
    QUERN_CHECK(way == Way::automatic || objection.empty(), "decoder: ", objection);
    fused_ = objection.empty();
    const bool naive = model.options().kernels == KernelKind::naive;
    if (!fused_ && !naive) note_slow_path("decoding", objection);
  }
  results_ = cuda::host_array<int32_t>(kMostPending * batch, on_gpu_);
  for (int64_t i = 0; on_gpu_ && i < kMostPending; ++i) done_.emplace_back(cuda::EventKind::order);
  if (!fused_) return;
  step_ = std::make_unique<DecodeStep>(model, buffers(), way == Way::automatic);
}

Decoder::~Decoder() {
  for (const cuda::Event& done : done_) done.finish();  // no step writes to results_ any more
}

DecodeBuffers Decoder::buffers() const {
  return {&cache_, reinterpret_cast<DecodeRow*>(row_state_.raw_data()),
          tokens_, results_.get(),
          seen_,   logits_};
}

bool Decoder::one_kernel() const {
  return step_ && step_->one_kernel();
}

const DecodeRow& Decoder::state(int64_t b) const {
  QUERN_CHECK(b >= 0 && b < batch_, "decoder: row ", b, " of a batch of ", batch_);
  return rows_[static_cast<size_t>(b)];
}

void Decoder::check_tokens(const std::vector<int32_t>& tokens) const {
  QUERN_CHECK(!tokens.empty(), "decoder: the prompt is empty, expected at least one token");
  QUERN_CHECK(static_cast<int64_t>(tokens.size()) <= capacity(), "decoder: the prompt has ",
              tokens.size(), " tokens, the cache has room for ", capacity());
  for (size_t i = 0; i < tokens.size(); ++i) {
    QUERN_CHECK(tokens[i] >= 0 && tokens[i] < model_.config().vocab_size, "decoder: token ",
                tokens[i], " at position ", i, " of the prompt lies outside the vocabulary of ",
                model_.config().vocab_size);
  }
}

// Caches all tokens but the last, which the next step takes.
void Decoder::fill_cache(int64_t b, const std::vector<int32_t>& tokens) {
  const int64_t known = static_cast<int64_t>(tokens.size()) - 1;
  if (known > 0) {
    KvCache cache = cache_.row(b, 0);
    model_.decode(from_vector(std::vector(tokens.begin(), tokens.end() - 1), {1, known}), cache);
  }
  write(tokens_.slice(0, b, b + 1), &tokens.back());
  rows_[static_cast<size_t>(b)].length = static_cast<int32_t>(known);
}

void Decoder::upload(int64_t b) {
  write(row_state_.slice(0, b, b + 1), &rows_[static_cast<size_t>(b)]);
}

void Decoder::mark_seen(int64_t b, std::vector<int32_t> seen, const std::vector<int32_t>& tokens) {
  for (const int32_t token : tokens) {
    int32_t& word = seen[static_cast<size_t>(token) / 32];
    word = static_cast<int32_t>(static_cast<uint32_t>(word) | 1u << (token % 32));
  }
  write(seen_.slice(0, b, b + 1), seen.data());
}

void Decoder::start(int64_t b, const std::vector<int32_t>& prompt, const SampleOptions& options) {
  state(b);
  check_tokens(prompt);
  kernels::check_sample_options(options);
  fill_cache(b, prompt);
  DecodeRow& row = rows_[static_cast<size_t>(b)];
  row.options = options;
  row.drawn = 0;
  row.active = 1;
  upload(b);
  mark_seen(b, std::vector<int32_t>(static_cast<size_t>(seen_.dim(1))), prompt);
}

void Decoder::restart(int64_t b, const std::vector<int32_t>& tokens) {
  QUERN_CHECK(active(b), "decoder: row ", b, " cannot restart, since it was not started");
  check_tokens(tokens);
  fill_cache(b, tokens);
  upload(b);
  mark_seen(b, seen_.slice(0, b, b + 1).to_vector<int32_t>(), tokens);
}

void Decoder::finish(int64_t b) {
  if (!active(b)) return;
  rows_[static_cast<size_t>(b)].active = 0;
  upload(b);
}

void Decoder::composed_step() {
  for (int64_t b = 0; b < batch_; ++b) {
    if (!active(b)) continue;
    KvCache cache = cache_.row(b, length(b));
    copy(logits_.slice(0, b, b + 1),
         model_.decode(tokens_.slice(0, b, b + 1).reshape({1, 1}), cache));
  }
  draw_tokens(buffers());
}

void Decoder::step() {
  const NoGrad no_grad;
  bool any = false;
  for (int64_t b = 0; b < batch_; ++b) {
    any = any || active(b);
    QUERN_CHECK(!active(b) || length(b) < capacity(), "decoder: the cache of row ", b,
                " is full, it holds ", capacity(), " tokens");
  }
  QUERN_CHECK(any, "decoder: a step without an active row");
  QUERN_CHECK(pending() < kMostPending, "decoder: ", pending(), " steps are already pending");
  step_ ? step_->run() : composed_step();
  const uint64_t slot = launched_++ % static_cast<uint64_t>(kMostPending);
  if (on_gpu_) done_[slot].record(Context::current().cuda_stream());
  for (DecodeRow& row : rows_) {
    ++row.posted;
    if (row.active == 0) continue;
    ++row.drawn;
    ++row.length;
  }
}

std::vector<int32_t> Decoder::fetch() {
  QUERN_CHECK(pending() > 0, "decoder: no step is pending");
  const uint64_t slot = fetched_++ % static_cast<uint64_t>(kMostPending);
  if (on_gpu_) done_[slot].synchronize();
  const int32_t* const begin = results_.get() + static_cast<int64_t>(slot) * batch_;
  return {begin, begin + batch_};
}

}  // namespace quern
