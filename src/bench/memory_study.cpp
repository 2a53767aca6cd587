#include "bench/memory_study.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/counted.h"
#include "bench/phase_runner.h"
#include "model/model_cost.h"
#include "profile/memory/memory_recorder.h"
#include "run/model_instance.h"
#include "train/choose_recompute.h"

namespace quern {

namespace {

// Fills the measured fields.
void measure(MemoryStudy& study) {
  study.measured = true;
  study.out_of_memory = out_of_memory_in([&] {
    current_allocator().reset_peak();
    Context::current().offload_allocator()->reset_peak();
    study.trace = trace_memory(study.config, study.pass);
  });
  if (!study.out_of_memory.empty()) return;
  study.peak_bytes = current_allocator().stats().peak_allocated;
  study.by_category = peak_of(study.trace).by_category;
  study.on_host_bytes = offloaded_bytes();
}

}  // namespace

double MemoryStudy::deviation() const {
  if (peak_bytes == 0) return std::numeric_limits<double>::quiet_NaN();
  const auto found = static_cast<double>(peak_bytes);
  return 100.0 * (static_cast<double>(predicted.total()) - found) / found;
}

MemoryStudy study_memory(const Config& config, MemoryPass pass, bool predict, bool on_cpu) {
  check_vocabulary(config);
  const Device device = Context::current().device();
  MemoryStudy study;
  study.config = config;
  study.config.compute.recompute = decided_options(config).recompute;
  study.pass = pass;
  study.device = cat(device);
  study.predicted = predict_peak(study.config, pass, current_target());
  const bool too_large = !device.is_cuda() && !on_cpu && study.predicted.total() > kMostCpuBytes;
  if (!predict && !too_large) {
    measure(study);
  } else if (!device.is_cuda() && !on_cpu) {
    study.device = "a GPU";
    study.predicted = predict_peak(study.config, pass, hopper_target());
  }
  return study;
}

int64_t BlockStudy::measured() const {
  int64_t sum = 0;
  for (const SavedTensor& tensor : tensors) sum += tensor.bytes;
  return sum;
}

namespace {

// The tensors saved by the second of three blocks: first and last lack a branch to add or pass on.
std::vector<SavedTensor> saved_tensors(const Config& config, int64_t sequences) {
  const std::string block = "model.layers.1";
  const MemoryRecorder recorder;
  const ModelInstance instance(config.model, config.compute, config.model.init, true,
                               static_cast<uint64_t>(config.train.seed));
  const RandomBatch batch = random_batch(config.model, sequences);
  const Variable loss = [&] {
    const RangeScope range(RangeKind::phase, "forward");
    return instance.model.loss(batch.tokens, batch.targets);
  }();
  const MemoryTrace trace = recorder.trace();
  std::vector<SavedTensor> saved;
  for (const TracedAllocation& a : trace.allocations) {
    const std::string& module = trace.names[a.place.module];
    const bool inside = module == block || module.starts_with(block + ".");
    if (a.category != MemoryCategory::activations || !inside) continue;
    const std::string inner = module == block ? "" : module.substr(block.size() + 1);
    saved.push_back({inner, trace.names[a.place.op], trace.names[a.name],
                     trace.names[a.place.shapes], a.bytes});
  }
  return saved;
}

}  // namespace

BlockStudy study_block(const Config& config) {
  Config one = config;
  one.compute.recompute = decided_options(config).recompute;
  one.model.layers = 3;
  one.compute.segment = 1;
  one.model.vocab_size = std::min<int64_t>(config.model.vocab_size, 256);
  BlockStudy study;
  study.config = config;
  study.config.compute.recompute = one.compute.recompute;
  study.device = cat(Context::current().device());
  // With one sequence, naive attention saves views; with several, copies.
  const int64_t batch = config.train.batch, sequences = std::min<int64_t>(batch, 2);
  study.out_of_memory = out_of_memory_in([&] { study.tensors = saved_tensors(one, sequences); });
  for (SavedTensor& tensor : study.tensors) tensor.bytes = tensor.bytes * batch / sequences;
  study.predicted = run_dry(current_target(), one.compute, [&] {
    int64_t sum = 0;
    for (const SavedTensor& tensor : saved_tensors(one, batch)) sum += tensor.bytes;
    return sum;
  });
  return study;
}

namespace {

const std::vector<Setting> kSettings{
    {"size", "size", 6},        {"ctx", "ctx", 5},           {"batch", "batch", 5},
    {"precision", "dtype"},     {"attention", "attn"},       {"kernels", "kernels", 7},
    {"recompute", "recompute"}, {"residual", "residual", 8}, {"moments", "moments", 8}};
// Heading and rank of each category. The device has rank 7 and the deviation 1.
struct CategoryColumn {
  const char* name;
  int rank;
};
constexpr std::array<CategoryColumn, kMemoryCategories> kCategoryColumns{
    {{"params", 3}, {"grads", 5}, {"optimizer", 4}, {"activ.", 2}, {"workspace", 8}, {"other", 6}}};

// One of a study's two rows: predicted or measured.
TableRow memory_row(const MemoryStudy& study, const std::set<std::string>& varying,
                    const char* peak, int64_t bytes, const MemoryByCategory& categories,
                    int64_t on_host) {
  TableRow row{setting_fields(kSettings, study.config, varying), {}, {}};
  row.settings.insert(row.settings.end(),
                      {{{"", "params"}, parameter_count(study.config.model)},
                       {{"on", "device", 0, 6, Align::left, 7}, study.device},
                       {{"pass", "pass", 0, 7, Align::left}, name_of(study.pass)},
                       {{"peak", "peak", 0, 9, Align::left}, peak}});
  row.figures = {{{"MiB", "mib", 1, 8}, mebibytes(bytes)}, {{"", "bytes"}, bytes}};
  for (size_t i = 0; i < kMemoryCategories; ++i) {
    const std::string key = cat(name_of(static_cast<MemoryCategory>(i)), "_mib");
    const auto& [name, rank] = kCategoryColumns[i];
    row.figures.push_back({{name, key, 1, 7, Align::right, rank}, mebibytes(categories[i])});
  }
  const ModelOptions& options = study.config.compute;
  const bool offloads = options.offload != Offload::none || options.offload_activations;
  row.figures.push_back({{offloads ? "host" : "", "on_host_mib", 1, 7}, mebibytes(on_host)});
  row.figures.push_back({{"off by %", "deviation_percent", 2, 8, Align::right, 1}, Cell()});
  return row;
}

}  // namespace

std::string memory_rows(Table& table, const MemoryStudy& study,
                        const std::set<std::string>& varying) {
  const std::string head = shared_settings(kSettings, study.config, varying) + "; MiB\n\n";
  TableRow row = memory_row(study, varying, "predicted", study.predicted.total(),
                            study.predicted.by_category, study.predicted.on_host);
  row.figures.back().value = study.deviation();
  const std::string text = table.add(row, head);
  if (!study.measured) return text;
  row = memory_row(study, varying, "measured", study.peak_bytes, study.by_category,
                   study.on_host_bytes);
  row.out_of_memory = study.out_of_memory;
  return text + table.add(row);
}

std::string block_rows(Table& table, const BlockStudy& study,
                       const std::set<std::string>& varying) {
  const std::string head = cat(
      "what one block saves for its backward: ", shared_settings(kSettings, study.config, varying),
      ", measured on ", study.device, "\n\n");
  const auto tokens = static_cast<double>(study.config.train.batch * study.config.model.context);
  std::string text;
  const auto add = [&](const SavedTensor& t, const std::string& out_of_memory = "") {
    TableRow row{
        setting_fields(kSettings, study.config, varying),
        {{{"bytes/token", "bytes_per_token", 1, 11}, static_cast<double>(t.bytes) / tokens},
         {{"MiB", "mib", 2, 8}, mebibytes(t.bytes)},
         {{"", "bytes"}, t.bytes}},
        out_of_memory};
    row.settings.insert(row.settings.end(), {{{"module", "module", 0, 24, Align::left}, t.module},
                                             {{"op", "op", 0, 16, Align::left, 1}, t.op},
                                             {{"tensor", "tensor", 0, 24, Align::left}, t.name},
                                             {{"", "inputs"}, t.inputs}});
    text += table.add(row, head);
  };
  for (const SavedTensor& tensor : study.tensors) add(tensor);
  add({"", "", "all", "", study.measured()}, study.out_of_memory);
  add({"", "", "predicted", "", study.predicted});
  return text;
}

}  // namespace quern
