#include "run/make_optimizer.h"

#include "base/error.h"
#include "optim/muon.h"

namespace quern {

std::unique_ptr<Optimizer> make_optimizer(ParameterArena& arena, const Config& config) {
  const OptimizerSection& o = config.optimizer;
  const bool halt = config.train.on_nonfinite == OnNonfinite::stop;
  const AdamWOptions adamw{.beta1 = o.beta1,
                           .beta2 = o.beta2,
                           .eps = o.eps,
                           .weight_decay = o.weight_decay,
                           .clip = o.clip,
                           .kernels = config.compute.kernels,
                           .halt_on_nonfinite = halt,
                           .moments = o.moments,
                           .seed = static_cast<uint64_t>(config.train.seed)};
  switch (o.kind) {
    case OptimizerKind::adamw: return std::make_unique<AdamW>(arena, adamw);
    case OptimizerKind::muon: {
      QUERN_CHECK(!arena.is_shared_out(),
                  "optimizer is muon, which cannot be shared out; expected adamw");
      const MuonOptions muon{adamw, o.momentum, o.nesterov, o.muon_lr_scale, o.muon_adjust};
      return std::make_unique<Muon>(arena, muon);
    }
  }
  fail("config: unknown optimizer");
}

}  // namespace quern
