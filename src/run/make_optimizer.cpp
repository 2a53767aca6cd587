#include "run/make_optimizer.h"

#include "base/error.h"
#include "tensor/context.h"

namespace quern {

MuonExchange muon_exchange(Communicator* ranks) {
  if (ranks == nullptr) return {};
  return [ranks](float* received, const float* sent, int64_t each, const char* what) {
    ranks->exchange(received, sent, RankSlices(ranks->size() * each, ranks->size(), 1), what,
                    Context::current().cuda_stream());
  };
}

std::unique_ptr<Optimizer> make_optimizer(ParameterArena& arena, const Config& config,
                                          Communicator* ranks) {
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
      const MuonOptions muon{adamw, o.momentum, o.nesterov, o.muon_lr_scale, o.muon_adjust};
      return std::make_unique<Muon>(arena, muon, muon_exchange(ranks));
    }
  }
  fail("config: unknown optimizer");
}

}  // namespace quern
