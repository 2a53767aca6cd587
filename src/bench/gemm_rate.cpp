#include "bench/gemm_rate.h"

#include <fmt/format.h>

#include <chrono>

#include "bench/harness.h"
#include "model/model_cost.h"
#include "tensor/factory.h"

namespace quern {

namespace {

// y = x w^T, dx = dy w and dw = dy^T x for x (N, in) and `count` weights w (out, in).
void add_linear(std::vector<StepGemm>& products, const std::string& name, int64_t N,
                const Shape& weight, int64_t count) {
  const int64_t out = weight[0], in = weight[1];
  const double flops = 2.0 * static_cast<double>(N) * static_cast<double>(in) *
                       static_cast<double>(out) * static_cast<double>(count);
  kernels::Gemm y{N, out, in}, dx{N, in, out}, dw{out, in, N};
  y.transpose_b = true;
  dw.transpose_a = true;
  products.push_back({name + " y", y, count, flops});
  products.push_back({name + " dx", dx, count, flops});
  products.push_back({name + " dw", dw, count, flops});
}

// "model.layers.0.self_attn.qkv_proj.weight" -> "qkv_proj".
std::string layer_name(const std::string& weight) {
  const std::string module = weight.substr(0, weight.rfind('.'));
  return module.substr(module.rfind('.') + 1);
}

// Two products of the shape (T, D) by (D, T): q k^T and do v^T. Four of (T, T) by (T, D):
// p v, p^T do, ds k and ds^T q.
void add_attention(std::vector<StepGemm>& products, const ModelConfig& config, int64_t B,
                   int64_t T) {
  const int64_t D = config.head_size();
  kernels::Gemm scores{T, T, D}, values{T, D, T};
  scores.transpose_b = true;
  scores.batch = values.batch = B * config.heads;
  scores.stride_a = scores.stride_b = values.stride_b = values.stride_d = T * D;
  scores.stride_d = values.stride_a = T * T;
  const double causal = static_cast<double>(T) * static_cast<double>(T) * static_cast<double>(D) *
                        static_cast<double>(scores.batch * config.layers);
  products.push_back({"attention scores", scores, 2 * config.layers, 2 * causal});
  products.push_back({"attention values", values, 4 * config.layers, 4 * causal});
}

// FLOPs of the whole batched product.
double flops_of(const kernels::Gemm& gemm) {
  return 2.0 * static_cast<double>(gemm.m) * static_cast<double>(gemm.n) *
         static_cast<double>(gemm.k) * static_cast<double>(gemm.batch);
}

}  // namespace

std::vector<StepGemm> step_gemms(const ModelConfig& config, int64_t B, int64_t T) {
  std::vector<StepGemm> products;
  const ParameterTable table = parameter_table(config);
  const auto add = [&](const std::string& name, const ParameterEntry& weight, int64_t count) {
    add_linear(products, name, B * T, weight.shape, count);
  };
  const ParameterEntry* head = nullptr;
  for (const ParameterEntry& entry : table.entries()) {
    if (entry.group.kind == ParameterKind::vector || table.is_lookup(entry)) continue;
    if (entry.block < 0) head = &entry;
    if (entry.block == 0) add(layer_name(entry.name), entry, config.layers);  // blocks are equal
  }
  add("lm_head", *head, 1);
  add_attention(products, config, B, T);
  return products;
}

double measure_gemm(const StepGemm& product) {
  constexpr double kEnough = 0.05;  // seconds: far above the clock's resolution and a page fault
  constexpr size_t kFewest = 5, kMost = 100;
  const kernels::Gemm& g = product.gemm;
  const Tensor a = Tensor::empty({g.batch * g.m * g.k}, DType::f32, kCpu);
  const Tensor b = Tensor::empty({g.batch * g.k * g.n}, DType::f32, kCpu);
  const Tensor d = Tensor::empty({g.batch * g.m * g.n}, DType::f32, kCpu);
  for (const Tensor& operand : {a, b, d}) fill(operand, 0.5);
  const kernels::cpu::Stream stream{};
  kernels::GemmResources resources;
  resources.scratch_bytes = gemm_scratch(g, DType::f32, stream);
  const Tensor scratch = Tensor::empty({resources.scratch_bytes}, DType::u8, kCpu);
  resources.scratch = scratch.raw_data();

  std::vector<double> seconds;
  double spent = 0.0;
  for (size_t i = 0; i < kMost && (i < kFewest || spent < kEnough); ++i) {
    const auto start = std::chrono::steady_clock::now();
    gemm(d.data<float>(), a.data<float>(), b.data<float>(), g, resources, stream);
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    spent += seconds.back();
  }
  return summarize(seconds).median / flops_of(g) * product.flops;
}

GemmRates measure_gemm_rates(const ModelConfig& config, int64_t B, int64_t T) {
  GemmRates rates;
  for (const StepGemm& product : step_gemms(config, B, T)) {
    const double seconds = measure_gemm(product);
    rates.products.push_back({product, seconds});
    rates.flops += product.flops;
    rates.seconds += seconds;
  }
  return rates;
}

std::string gemm_table(const GemmRates& rates, double step_seconds) {
  std::string text =
      fmt::format("{:<18} {:>7} {:>7} {:>7} {:>6} {:>6} {:>10} {:>9} {:>9}\n", "matrix product",
                  "m", "n", "k", "batch", "count", "MFLOP", "GFLOP/s", "ms/step");
  for (const GemmRate& rate : rates.products) {
    const kernels::Gemm& g = rate.product.gemm;
    text += fmt::format("{:<18} {:>7} {:>7} {:>7} {:>6} {:>6} {:>10.1f} {:>9.1f} {:>9.3f}\n",
                        rate.product.name, g.m, g.n, g.k, g.batch, rate.product.count,
                        rate.product.flops / 1e6, rate.product.flops / rate.seconds / 1e9,
                        rate.seconds * 1e3);
  }
  const double step_rate = rates.flops / step_seconds;
  return text + fmt::format(
                    "matmul of the step: {:.1f} GFLOP/s; SGEMM at its shapes: {:.1f} GFLOP/s; "
                    "ratio {:.3f}\n",
                    step_rate / 1e9, rates.flops_per_second() / 1e9,
                    step_rate / rates.flops_per_second());
}

}  // namespace quern
