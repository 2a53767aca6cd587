#pragma once

namespace quern {

// The output of an MLP's activation, which the next weight's gradient needs: computed again in the
// backward, or kept.
enum class ActivationOutput { rebuilt, kept };

}  // namespace quern
