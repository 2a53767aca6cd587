#include "config/config_table.h"

#include <algorithm>

#include "base/parse_number.h"
#include "config/config_rows.h"
#include "io/utf8.h"

namespace quern {

namespace {

constexpr int64_t kMany = 1000000000;  // no practical limit on a count
constexpr int64_t kInt = 2147483647;

void add_rope_scaling(std::vector<ConfigKey>& table) {
  using R = RopeScaling;
  using Kind = RopeScalingKind;
  SectionRows rows(
      table, "model", [](auto& config) -> auto& { return config.model.rope_scaling; },
      "/rope_scaling/");
  rows.choice("rope_scaling", &R::kind,
              {{"none", Kind::none}, {"linear", Kind::linear}, {"llama3", Kind::llama3}},
              "scaling of rotary frequencies for a longer context than the original; linear: "
              "divides all by rope_factor; llama3: divides only the low ones")
      .manifest = "/rope_scaling/kind";
  rows.real("rope_factor", &R::factor, {1, kNoLimit}, "divisor of rope_scaling").manifest =
      "/rope_scaling/factor";
  rows.real("rope_low_freq_factor", &R::low_freq_factor, {0, kNoLimit, true},
            "llama3: frequencies up to this many turns in rope_original_ctx are divided")
      .manifest = "/rope_scaling/low_freq_factor";
  rows.real("rope_high_freq_factor", &R::high_freq_factor, {0, kNoLimit, true},
            "llama3: frequencies from this many turns in rope_original_ctx are kept")
      .manifest = "/rope_scaling/high_freq_factor";
  rows.integer("rope_original_ctx", &R::original_context, 1, 1 << 24,
               "llama3: context length in tokens before the scaling")
      .manifest = "/rope_scaling/original_context";
}

void add_model(std::vector<ConfigKey>& table) {
  table.push_back({"model", "size", ValueKind::choice, describe_choices(size_names()),
                   "named size: sets the dimensions; the keys of the dimensions override it",
                   [](const Config& config) -> ConfigValue { return config.model.size; },
                   [](Config& config, const ConfigValue& value) {
                     const std::string* size = std::get_if<std::string>(&value);
                     const std::vector<std::string> names = size_names();
                     if (!size || std::find(names.begin(), names.end(), *size) == names.end())
                       return false;
                     config.model.size = *size;
                     apply_size(config.model, *size);
                     return true;
                   },
                   "", size_names()});
  using M = ModelSection;
  SectionRows rows(table, "model", &Config::model, "/");
  rows.integer("d_model", &M::d_model, 1, 1 << 20, "width of the residual stream");
  rows.integer("d_ff", &M::d_ff, 1, 1 << 22, "width of the feed-forward layers");
  rows.integer("layers", &M::layers, 1, 10000, "number of Transformer blocks");
  rows.integer("heads", &M::heads, 1, 1 << 16,
               "query heads; divides d_model unless head_dim is set");
  rows.integer("kv_heads", &M::kv_heads, 0, 1 << 16,
               "key and value heads, a divisor of heads; 0: equal to heads");
  rows.integer("head_dim", &M::head_dim, 0, 1 << 16, "width of a head; 0: d_model / heads");
  rows.integer("vocab", &M::vocab_size, 0, kInt, "vocabulary size; 0: that of the data").manifest =
      "/vocab_size";
  rows.integer("ctx", &M::context, 1, 1 << 24, "context length in tokens").manifest = "/context";
  rows.boolean("tied", &M::tied, "the head shares the embedding's weight");
  rows.boolean("qkv_bias", &M::qkv_bias, "biases of q, k and v (Qwen2.5)");
  rows.boolean("qk_norm", &M::qk_norm, "RMSNorm of each head of q and k (Qwen3)");
  rows.choice("norm", &M::norm, {{"rms", NormKind::rms}, {"layer", NormKind::layer}},
              "rms: RMSNorm; layer: LayerNorm (GPT-2)");
  rows.choice(
      "mlp", &M::mlp, {{"swiglu", MlpKind::swiglu}, {"gelu", MlpKind::gelu}},
      "feed-forward layers; swiglu: gate, up and down; gelu: up, GELU's tanh form, and down");
  rows.choice(
      "positions", &M::positions,
      {{"rope", PositionKind::rope}, {"learned", PositionKind::learned}},
      "rope: rotary; learned: one vector for each of ctx positions, added to the embedding");
  rows.boolean("bias", &M::bias,
               "biases of LayerNorm and of linear layers except the head; needs mlp = gelu");
  rows.real("rope_theta", &M::rope_theta, {0, kNoLimit, true}, "base of the rotary frequencies");
  add_rope_scaling(table);
  rows.real("norm_eps", &M::norm_eps, {0, 1}, "added to the mean square or the variance in norms");
  SectionRows others(table, "model", &Config::model);  // not dimensions
  others.text("from", &M::from, "a path in UTF-8",
              "Hugging Face folder, run folder or checkpoint with the initial model and weights; "
              "empty: new weights");
  others.choice("init", &M::init,
                {{"normal", InitScheme::normal}, {"truncated", InitScheme::truncated}},
                "initial weights; normal: with standard deviation 0.02 and scaled residual "
                "projections; truncated: a truncated normal by fan-in and fan-out");
}

void add_compute(std::vector<ConfigKey>& table) {
  using C = ComputeSection;
  SectionRows rows(table, "compute", &Config::compute);
  rows.choice(
      "device", &C::device,
      {{"auto", DeviceChoice::automatic}, {"cpu", DeviceChoice::cpu}, {"cuda", DeviceChoice::cuda}},
      "device of the computation; auto: a GPU if there is one");
  rows.choice(
      "precision", &C::precision,
      {{"fp32", Precision::fp32},
       {"tf32", Precision::tf32},
       {"bf16", Precision::bf16},
       {"fp8", Precision::fp8}},
      "fp32: FP32 accuracy throughout; tf32: inputs of products, including attention's, rounded to "
      "TF32; bf16: also activations, with weights and gradients in FP32; fp8: bf16, and the "
      "products of the blocks' linear layers in FP8 with scales");
  rows.choice("attention", &C::attention,
              {{"naive", AttentionKind::naive}, {"flash", AttentionKind::flash}},
              "naive: scores in memory; flash: tiled, memory linear in ctx");
  rows.choice("kernels", &C::kernels, {{"naive", KernelKind::naive}, {"fused", KernelKind::fused}},
              "naive: composed of small operations; fused: one kernel per operation");
  rows.choice("residual", &C::residual,
              {{"bf16", ResidualType::bf16}, {"fp32", ResidualType::fp32}},
              "storage of the residual stream when precision is bf16 or fp8");
  rows.choice(
      "fp32_products", &C::fp32_products,
      {{"split", Fp32Products::split}, {"fma", Fp32Products::fma}},
      "kernels of matrix products when precision is fp32; both have FP32's error; split: Quern's "
      "where they are faster (on GPUs with three BF16 parts on tensor cores); fma: the library's "
      "(on GPUs on CUDA cores, on CPUs Eigen)");
  rows.boolean("deterministic", &C::deterministic, "the same seed gives the same bits");
  rows.boolean("graph", &C::graph,
               "capture the training step as a CUDA graph; on a GPU, with kernels = fused");
  rows.choice(
      "recompute", &C::recompute,
      {{"auto", Recompute::automatic},
       {"none", Recompute::none},
       {"swiglu", Recompute::swiglu},
       {"norms", Recompute::norms},
       {"blocks", Recompute::blocks}},
      "values that the backward computes again to save memory; swiglu: outputs of SwiGLU; "
      "norms: also outputs of norms; blocks: everything in a segment of blocks; auto, decided when "
      "a run starts: on a GPU none if the step then takes at most a third of the memory, else "
      "swiglu if it then takes at most half, else norms; on a CPU norms; in training blocks if the "
      "step fits only with blocks");
  rows.integer("segment", &C::segment, 1, 10000,
               "blocks recomputed together when recompute is blocks");
  rows.choice(
      "offload", &C::offload,
      {{"none", Offload::none}, {"moments", Offload::moments}, {"optimizer", Offload::optimizer}},
      "state that training on a GPU keeps in host memory, with the same bits and a slower "
      "update; optimizer: the moments and, when precision is bf16, the part of the weights that "
      "only the update reads");
  rows.boolean(
      "offload_activations", &C::offload_activations,
      "keep activations in host memory between forward and backward: with recompute = blocks the "
      "inputs of segments, otherwise each MLP's hidden layer (with fused kernels; GPT-2's not in "
      "FP8)");
  rows.text(
      "gemm_table", &C::gemm_table, "a path in UTF-8",
      "cuBLASLt algorithms measured by `quern tune`; empty: the shipped table of this GPU, else "
      "the library's own choice");
  rows.integer("threads", &C::threads, 0, 4096, "CPU threads; 0: all cores");
  rows.choice(
      "cpu_level", &C::cpu_level,
      {{"auto", CpuLevel::automatic},
       {"avx2", CpuLevel::avx2},
       {"avx512", CpuLevel::avx512},
       {"avx512_bf16", CpuLevel::avx512_bf16},
       {"amx", CpuLevel::amx}},
      "vector instructions of the CPU kernels; auto: the best that processor and build have; "
      "all levels give the same results, except Eigen's products and, at the last two levels, "
      "BF16 products");
  rows.integer("memory_limit", &C::memory_limit, 0, 1 << 30,
               "MiB of the device's memory that may be used; 0: no limit");
}

void add_data(std::vector<ConfigKey>& table) {
  using D = DataSection;
  SectionRows rows(table, "data", &Config::data);
  rows.text("train", &D::train, "a path in UTF-8",
            "text file, folder of text files, token file, or glob of token files");
  rows.text("validation", &D::validation, "a path in UTF-8",
            "as train; empty: the validation split of prepared data, else the end of train");
  rows.real("validation_fraction", &D::validation_fraction, {0, 1, false, true},
            "part of train held out when validation is empty");
  rows.choice("format", &D::format,
              {{"auto", DataFormat::automatic},
               {"text", DataFormat::text},
               {"nanogpt", DataFormat::nanogpt},
               {"llmc", DataFormat::llmc}},
              "text: bytes; nanogpt: raw uint16 tokens; llmc: tokens with llm.c's header; auto: by "
              "name and content");
  rows.text("tokenizer", &D::tokenizer, "a path in UTF-8",
            "tokenizer.model, tokenizer.json or a folder with one; none: only token ids, without a "
            "tokenizer; empty: that of the token files or of model.from, else bytes");
  rows.choice("sampling", &D::sampling,
              {{"random", Sampling::random}, {"permutation", Sampling::permutation}},
              "random: windows drawn with replacement; permutation: each window once per epoch, in "
              "an order given by the seed");
  rows.boolean("document_mask", &D::document_mask,
               "exclude the first token of each document from the loss, since the token before it "
               "belongs to another document");
}

void add_train(std::vector<ConfigKey>& table) {
  using T = TrainSection;
  SectionRows rows(table, "train", &Config::train);
  rows.integer("steps", &T::steps, 1, kMany, "optimizer steps");
  rows.integer("batch", &T::batch, 1, 1 << 20, "sequences in a micro-batch");
  rows.integer("accumulate", &T::accumulate, 1, 1 << 20, "micro-batches in a step");
  rows.integer("seed", &T::seed, 0, INT64_MAX,
               "seed of the initial weights, the batches and dropout");
  SectionRows loss_rows(
      table, "train", [](auto& config) -> auto& { return config.compute; });
  loss_rows.real("dropout", &ModelOptions::dropout, {0, 1, false, true},
                 "probability of dropping an activation, in the embeddings and in the output of "
                 "each attention and MLP; 0: no dropout");
  loss_rows.real(
      "z_loss", &ModelOptions::z_loss, {0, kNoLimit},
      "weight of the mean squared logsumexp of the logits in the training loss; reported "
      "losses are the cross-entropy; 0: none");
  rows.integer("log_every", &T::log_every, 0, kMany, "steps between lines of progress; 0: none");
  rows.boolean("tensorboard", &T::tensorboard,
               "also write the metrics as TensorBoard event files, in the run folder");
  rows.integer("eval_every", &T::eval_every, 0, kMany, "steps between validations; 0: none");
  rows.integer("eval_batches", &T::eval_batches, 0, kMany,
               "batches in a validation; 0: every window");
  rows.integer("sample_every", &T::sample_every, 0, kMany, "steps between samples; 0: none");
  rows.integer("checkpoint_every", &T::checkpoint_every, 0, kMany,
               "steps between checkpoints; 0: only at the end");
  rows.integer("keep", &T::keep, 1, 1 << 20, "number of newest checkpoints kept, besides the best");
  rows.choice("on_nonfinite", &T::on_nonfinite,
              {{"stop", OnNonfinite::stop}, {"skip", OnNonfinite::skip}},
              "reaction to an infinite or NaN loss or gradient norm; neither changes the weights");
}

void add_optimizer(std::vector<ConfigKey>& table) {
  using O = OptimizerSection;
  SectionRows rows(table, "optimizer", &Config::optimizer);
  rows.choice(
      "optimizer", &O::kind, {{"adamw", OptimizerKind::adamw}, {"muon", OptimizerKind::muon}},
      "adamw: AdamW for all; muon: Muon for hidden matrices, AdamW for embeddings, head and "
      "vectors");
  rows.real("lr", &O::lr, {0, 1000}, "peak learning rate");
  rows.real("min_lr", &O::min_lr, {0, 1}, "learning rate at the end, as a fraction of lr");
  rows.integer("warmup", &O::warmup, 0, kMany, "steps of linear warm-up");
  rows.choice("schedule", &O::schedule,
              {{"constant", ScheduleKind::constant},
               {"cosine", ScheduleKind::cosine},
               {"linear", ScheduleKind::linear},
               {"wsd", ScheduleKind::wsd}},
              "learning rate after the warm-up; wsd: constant, then linear decay");
  rows.real("decay_fraction", &O::decay_fraction, {0, 1},
            "wsd: fraction of the steps in the decay");
  rows.real("beta1", &O::beta1, {0, 1, false, true}, "AdamW's decay of the first moment");
  rows.real("beta2", &O::beta2, {0, 1, false, true}, "AdamW's decay of the second moment");
  rows.real("eps", &O::eps, {0, 1, true}, "AdamW's epsilon");
  rows.choice("moments", &O::moments, {{"fp32", MomentType::fp32}, {"bf16", MomentType::bf16}},
              "storage of AdamW's moments, not of Muon's momentum; bf16: with stochastic rounding, "
              "4 bytes a parameter instead of 8");
  rows.real("momentum", &O::momentum, {0, 1, false, true}, "Muon's decay of the mean gradient");
  rows.boolean("nesterov", &O::nesterov, "Nesterov momentum in Muon");
  rows.real("muon_lr_scale", &O::muon_lr_scale, {0, 1000},
            "learning rate of Muon's matrices, as a multiple of lr");
  rows.choice(
      "muon_adjust", &O::muon_adjust,
      {{"match_rms_adamw", MuonAdjust::match_rms_adamw}, {"original", MuonAdjust::original}},
      "factor on the update of an A x B matrix; match_rms_adamw: 0.2 sqrt(max(A, B)), for AdamW's "
      "lr and weight_decay; original: sqrt(max(1, A / B))");
  rows.real("weight_decay", &O::weight_decay, {0, 1000},
            "decoupled weight decay, of matrices only");
  rows.real("clip", &O::clip, {0, kNoLimit}, "maximum global gradient norm; 0: no clipping");
}

void add_parallel(std::vector<ConfigKey>& table) {
  using P = ParallelSection;
  SectionRows rows(table, "parallel", &Config::parallel);
  rows.choice("parallel", &P::parallel,
              {{"auto", Parallel::automatic},
               {"none", Parallel::none},
               {"ddp", Parallel::ddp},
               {"zero1", Parallel::zero1},
               {"zero2", Parallel::zero2},
               {"fsdp", Parallel::fsdp}},
              "strategy of several ranks; ddp: each rank has the whole model and a part of the "
              "batch; zero1: each rank updates one part of the model, and has FP32 weights and "
              "optimizer state only of that part; zero2: also has gradients only of that part; "
              "fsdp: also has the other weights only while they are used; auto: for several ranks "
              "zero1 on GPUs, else ddp");
  rows.integer("ranks", &P::ranks, 1, 65536,
               "number of processes that train together; started on this machine unless a "
               "launcher has started them; on GPUs one per GPU");
  rows.integer(
      "comm_limit", &P::comm_limit, 1, 3600,
      "seconds within which all ranks end when one is lost; a rank waits four fifths of this time "
      "for the others, on GPUs three fifths plus the time of the longest of the latest steps");
}

void add_run(std::vector<ConfigKey>& table) {
  SectionRows rows(table, "run", &Config::run);
  rows.text("out", &RunSection::out, "a path in UTF-8",
            "new run folder; empty: runs/ and the date and time");
  rows.text("resume", &RunSection::resume, "a path in UTF-8",
            "run folder to continue, or one of its checkpoints; writes to the same run folder");
}

void add_sample(std::vector<ConfigKey>& table) {
  using S = SampleSection;
  SectionRows rows(table, "sample", &Config::sample);
  rows.text("prompt", &S::prompt, "text in UTF-8", "text to continue; \\n and \\t are escapes");
  rows.integer("tokens", &S::tokens, 0, kMany, "tokens to generate");
  rows.real("temperature", &S::temperature, {0, 1000},
            "divides the logits; 0: always the most probable token");
  rows.integer("top_k", &S::top_k, 0, kInt, "keep the k most probable tokens; 0: all");
  rows.real(
      "top_p", &S::top_p, {0, 1, true},
      "keep the smallest set of the most probable tokens whose probabilities sum to at least this");
  rows.real("min_p", &S::min_p, {0, 1},
            "keep tokens whose probability is at least min_p times the highest; 0: all");
  rows.real(
      "repetition_penalty", &S::repetition_penalty, {0, 100, true},
      "divides positive and multiplies negative logits of tokens in the text so far; 1: none");
  rows.text("stop", &S::stop, "text in UTF-8",
            "strings that end the text, separated by |; \\n, \\t, \\| and \\\\ are escapes");
  rows.integer("stop_token", &S::stop_token, -2, kInt,
               "token that ends the text; -1: the tokenizer's end token, if it has one; -2: none");
  rows.integer("sample_seed", &S::sample_seed, 0, INT64_MAX, "seed of the draws");
  rows.choice("past_context", &S::past_context,
              {{"stop", PastContext::stop}, {"slide", PastContext::slide}},
              "at the context length; stop: end the text; slide: drop the older half and continue");
}

}  // namespace

const std::vector<ConfigKey>& config_table() {
  static const std::vector<ConfigKey> table = [] {
    std::vector<ConfigKey> rows;
    add_model(rows);
    add_compute(rows);
    add_data(rows);
    add_train(rows);
    add_optimizer(rows);
    add_parallel(rows);
    add_run(rows);
    add_sample(rows);
    return rows;
  }();
  return table;
}

const ConfigKey* find_key(std::string_view name) {
  for (const ConfigKey& key : config_table()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

const std::vector<const ConfigKey*>& model_keys() {
  static const std::vector<const ConfigKey*> keys = [] {
    std::vector<const ConfigKey*> found;
    for (const ConfigKey& key : config_table()) {
      if (!key.manifest.empty()) found.push_back(&key);
    }
    return found;
  }();
  return keys;
}

Config config_of(const ModelConfig& model) {
  Config config;
  static_cast<ModelConfig&>(config.model) = model;
  return config;
}

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const ConfigKey& key : config_table()) {
    if (names.empty() || names.back() != key.section) names.push_back(key.section);
  }
  return names;
}

std::optional<ConfigValue> parse_value(const ConfigKey& key, std::string_view text) {
  switch (key.kind) {
    case ValueKind::integer: return parse_number<int64_t>(text);
    case ValueKind::real: return parse_number<double>(text);
    case ValueKind::boolean:
      if (text == "true") return true;
      if (text == "false") return false;
      return std::nullopt;
    case ValueKind::choice: return std::string(text);
    case ValueKind::text:
      if (valid_utf8_prefix(text) != text.size()) return std::nullopt;
      return std::string(text);
  }
  fail("config: unknown kind of value");
}

std::string value_text(const Config& config, std::string_view name) {
  const ConfigKey* key = find_key(name);
  QUERN_CHECK(key, "config: there is no key ", name);
  const ConfigValue value = key->get(config);
  const std::string* text = std::get_if<std::string>(&value);
  return text ? *text : to_toml(value);
}

}  // namespace quern
