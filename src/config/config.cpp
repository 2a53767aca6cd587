#include "config/config.h"

namespace quern {

void validate(const Config& config) {
  ModelConfig model = config.model;
  if (model.vocab_size == 0) model.vocab_size = 1;  // unknown until the data is open
  try {
    model.validate();
    validate_options(model, config.compute);
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

}  // namespace quern
