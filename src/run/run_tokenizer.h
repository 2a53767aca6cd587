// The tokenizer of a run: its source, and its copy in the run folder.
#pragma once

#include <filesystem>
#include <memory>

#include "config/config.h"
#include "run/train_state.h"
#include "text/tokenizer.h"

namespace quern {

struct RunTokenizer {
  std::filesystem::path path;                  // for open_tokenizer; empty: null
  std::shared_ptr<const Tokenizer> tokenizer;  // null: tokens of an unknown tokenizer
};

// The tokenizer of data.train. Sources in this order: the resumed run, data.tokenizer, the folder
// tokenizer/ beside token files, model.from; without any of them text is bytes. data.tokenizer =
// "none" gives no tokenizer. Throws when two sources disagree, when one cannot be opened, when
// model.from's has more tokens than config.model.vocab_size, and when text needs another tokenizer
// than bytes, which is the task of `quern data prepare`.
RunTokenizer find_run_tokenizer(const Config& config, bool is_text);

// The tokenizer in the folder of a model, or null. Throws with the file, and with the way to
// continue without it, when it cannot be opened or has more tokens than the model's vocab_size.
std::shared_ptr<const Tokenizer> model_tokenizer(const std::filesystem::path& folder,
                                                 const ModelConfig& model);

// The tokenizer of a checkpoint: bytes, or that in tokenizer/ of its run folder; null when it has
// none. Throws when the folder holds another tokenizer than that of the training.
std::shared_ptr<const Tokenizer> saved_tokenizer(const std::filesystem::path& checkpoint,
                                                 const TrainState& state);

}  // namespace quern
