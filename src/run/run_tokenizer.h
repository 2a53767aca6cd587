// The tokenizer of a run: where it comes from, and where the run keeps it.
#pragma once

#include <filesystem>
#include <memory>

#include "config/config.h"
#include "run/train_state.h"
#include "text/tokenizer.h"

namespace quern {

struct RunTokenizer {
  std::filesystem::path path;  // for open_tokenizer; empty: null
  std::shared_ptr<const Tokenizer>
      tokenizer;  // null: the data are bare tokens, and nothing is said
};

// What the tokens of data.train mean. Asked in this order: the run that is resumed, data.tokenizer,
// the folder tokenizer/ beside token files, model.from; without an answer text is bytes. Where
// data.tokenizer is "none", nothing is said. Throws when two of them disagree, when one cannot be
// opened, when model.from's has more tokens than config.model.vocab_size, and when text would have
// to be encoded by another tokenizer than bytes, which `quern data prepare` does.
RunTokenizer find_run_tokenizer(const Config& config, bool is_text);

// The tokenizer in the folder of a model; null: there is none. Throws naming the file, and how to
// go on without it, when it cannot be opened or has more tokens than the model's vocab_size.
std::shared_ptr<const Tokenizer> model_tokenizer(const std::filesystem::path& folder,
                                                 const ModelConfig& model);

// The tokenizer of a checkpoint: bytes, or what tokenizer/ of its run folder holds; null when it
// has none. Throws when the folder holds another one than the checkpoint was trained with.
std::shared_ptr<const Tokenizer> saved_tokenizer(const std::filesystem::path& checkpoint,
                                                 const TrainState& state);

}  // namespace quern
