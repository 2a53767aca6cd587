// In which order the windows of a corpus are trained on.
#pragma once

namespace quern {

// random: drawn with replacement. permutation: each non-overlapping window once an epoch.
enum class Sampling { random, permutation };

}  // namespace quern
