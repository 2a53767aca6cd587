#include "report/verify_run.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "base/error.h"
#include "config/config_parse.h"
#include "io/json_file.h"
#include "io/small_file.h"
#include "model/model_cost.h"
#include "report/report_run.h"
#include "run/model_difference.h"
#include "run/nonfinite.h"
#include "run/run_tokenizer.h"
#include "run/train_state.h"
#include "run/weights.h"
#include "text/tokenizer_files.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

// Throws with file and tensor when it holds a NaN or an infinity.
void check_finite(const SafetensorsShards& files) {
  for (const std::string& name : files.names()) {
    const TensorView view = files.tensor(name);
    QUERN_CHECK(!is_floating(view.dtype) || all_finite(tensor_of(view)),
                files.file_of(name).path().string(), ": tensor '", name,
                "' holds a NaN or an infinity, expected finite numbers");
  }
}

// Throws with file and tensor when a weight of the model is missing or has another shape.
void check_weights(const SafetensorsShards& files, const ModelConfig& model) {
  for (const NamedSlice& slice : parameter_table(model).slices()) {
    const TensorView view = files.tensor(slice.name);
    QUERN_CHECK(view.shape == slice.shape, files.file_of(slice.name).path().string(), ": tensor '",
                slice.name, "' has shape ", view.shape, ", expected ", slice.shape);
  }
}

class Verifier {
 public:
  explicit Verifier(const fs::path& folder) : run_(RunFolder::open(folder)) {}

  RunCheck check() {
    check("config.toml", [this] {
      config_ = load_config(run_.config().string());
      return cat("trains ", config_->train.steps, " steps");
    });
    if (is_there(run_.metrics())) check("metrics.jsonl", [this] { return metrics(); });
    if (is_there(run_.samples())) {
      check("samples.txt", [this] {
        return counted(std::ssize(parse_samples(*read_if_there(run_.samples()))), "sample");
      });
    }
    if (is_there(run_.tokenizer())) {
      check("tokenizer",
            [this] { return cat(open_tokenizer(run_.tokenizer())->vocabulary(), " tokens"); });
    }
    if (is_there(run_.source() / "config.json")) {
      check("source/config.json", [this] {
        read_json_object(run_.source() / "config.json");
        return std::string("of the imported model");
      });
    }
    checkpoints();
    return std::move(result_);
  }

 private:
  // `content` returns what the file holds, and throws with what is wrong.
  bool check(const std::string& file, const std::function<std::string()>& content) {
    RunFileCheck row{file, "", ""};
    try {
      row.found = content();
    } catch (const Error& error) {
      row.damage = error.what();
    }
    result_.files.push_back(row);
    return row.damage.empty();
  }

  std::string metrics() const {
    const RunMetrics metrics = read_metrics(run_.metrics());
    QUERN_CHECK(metrics.warnings.empty(), metrics.warnings.front());
    const auto& steps = metrics.steps;
    for (size_t i = 1; i < steps.size(); ++i) {
      QUERN_CHECK(steps[i].step > steps[i - 1].step, run_.metrics().string(), ": step ",
                  steps[i].step, " follows step ", steps[i - 1].step,
                  ", expected each step once and in order");
    }
    return cat(counted(std::ssize(steps), "step"), ", ",
               counted(std::ssize(metrics.validations), "validation"),
               metrics.ended.empty() ? "" : cat("; ended: ", metrics.ended));
  }

  std::string checkpoint(const fs::path& path) const {
    const Checkpoint opened = open_checkpoint(path);
    const TrainState state = state_of(opened);
    if (config_ && config_->model.from.empty()) {
      const auto other = model_difference(state.model, config_->model);
      QUERN_CHECK(!other, path.string(), ": is of a model with ", other->key, " = ", other->found,
                  ", but ", run_.config().string(), " has ", other->expected);
    }
    check_weights(opened.weights, state.model);
    check_finite(opened.weights);
    check_finite(opened.moments);
    saved_tokenizer(path, state);
    return cat(parameter_count(state.model), " parameters, ", state.optimizer);
  }

  void checkpoints() {
    const fs::path folder = run_.checkpoints();
    for (const int64_t step : checkpoint_steps(folder)) {
      const fs::path path = checkpoint_path(folder, step);
      const std::string name = cat("checkpoints/", path.filename().string());
      const bool intact = check(name, [&] { return checkpoint(path); });
      if (!intact && !is_there(path)) result_.files.pop_back();  // rotated away meanwhile
      if (intact) result_.newest_intact = name;
    }
    if (is_there(folder / "best")) {
      check("checkpoints/best",
            [&] { return best_checkpoint(folder).value().filename().string(); });
    }
    if (is_there(folder / "kept")) {
      check("checkpoints/kept",
            [&] { return counted(std::ssize(kept_checkpoints(folder)), "checkpoint"); });
    }
    for (const fs::path& path : unfinished_checkpoints(folder)) {
      result_.files.push_back({cat("checkpoints/", path.filename().string()),
                               "left by a process that did not finish; not a checkpoint", ""});
    }
  }

  const RunFolder run_;
  std::optional<Config> config_;
  RunCheck result_;
};

}  // namespace

int64_t RunCheck::damaged() const {
  return std::ranges::count_if(files, [](const auto& row) { return !row.damage.empty(); });
}

RunCheck verify_run(const fs::path& folder) {
  return Verifier(folder).check();
}

}  // namespace quern
