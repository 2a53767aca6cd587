// The optimizers of the configuration, and their options.
#pragma once

namespace quern {

enum class OptimizerKind { adamw, muon };

// Storage of AdamW's moments. bf16: rounded up or down at random.
enum class MomentType { fp32, bf16 };

// The factor on Muon's orthogonal update of an (A, B) matrix.
enum class MuonAdjust {
  original,        // sqrt(max(1, A / B))
  match_rms_adamw  // 0.2 sqrt(max(A, B)): as large as AdamW's (Liu et al., 2025, section 2.2)
};

}  // namespace quern
