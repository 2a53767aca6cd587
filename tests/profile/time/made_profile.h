// Profiles made by hand, with known answers. Times are given in microseconds.
#pragma once

#include <string>
#include <utility>

#include "profile/time/profile.h"

namespace quern::testing_support {

class ProfileMaker {
 public:
  Profile profile;
  int64_t now = 0;  // added to all times: the begin of the step

  void step(int64_t begin, int64_t end) { profile.steps.push_back({ns(begin), ns(end)}); }

  int32_t range(RangeKind kind, const std::string& name, int64_t begin, int64_t end, int32_t parent,
                const std::string& phase, const std::string& module = "",
                const std::string& shapes = "", bool backward = false) {
    Names& names = profile.names;
    profile.ranges.push_back({kind, backward, names.id(name), names.id(phase), names.id(module),
                              names.id(shapes), parent, ns(begin), ns(end)});
    return static_cast<int32_t>(profile.ranges.size()) - 1;
  }

  uint64_t call(const std::string& name, int64_t begin, int64_t end, int32_t range) {
    profile.calls.push_back(
        {profile.names.id(name), range, ns(begin), ns(end), ++last_correlation_});
    return last_correlation_;
  }

  void device(DeviceEventKind kind, const std::string& name, int64_t begin, int64_t end,
              int32_t range, uint64_t correlation, int64_t bytes = 0, int32_t stream = 7) {
    profile.device_events.push_back(
        {kind, profile.names.id(name), range, stream, ns(begin), ns(end), bytes, correlation});
  }

  void kernel(const std::string& name, int64_t begin, int64_t end, int32_t range,
              uint64_t correlation) {
    device(DeviceEventKind::kernel, name, begin, end, range, correlation);
  }

  void memory(int64_t time, int64_t allocated, int64_t reserved) {
    profile.memory.push_back({ns(time), allocated, reserved});
  }

 private:
  int64_t ns(int64_t us) const { return (now + us) * 1000; }
  uint64_t last_correlation_ = 0;
};

inline constexpr const char* kGemm = "nvjet_tst_128x64_TNT";
inline constexpr const char* kAttention =
    "void quern::kernels::cuda::(anonymous namespace)::hopper_attention_forward_kernel<128, "
    "true>(quern::kernels::cuda::Params)";
inline constexpr const char* kCast =
    "void quern::kernels::cuda::(anonymous namespace)::forward_kernel<float>(float*, long)";
inline constexpr const char* kAdamW = "quern::kernels::cuda::adamw_kernel(float*)";
inline constexpr const char* kLayer = "model.layers.0";

// One step of 1000 us: 670 of work (GEMM 400, attention 100, memory-bound 150, copy 20), idle 30 in
// launches, 30 in ops (and the optimizer), 80 between ops, 130 in a synchronisation, 40 between
// kernels already launched, 20 outside the phases.
inline void add_step(ProfileMaker& made) {
  const std::string shapes = "(4, 8) (8, 8)";
  made.step(0, 1000);
  const int32_t forward = made.range(RangeKind::phase, "forward", 0, 400, -1, "forward");
  const int32_t layer =
      made.range(RangeKind::module, "model.layers.0", 10, 390, forward, "forward", kLayer);
  const int32_t linear =
      made.range(RangeKind::op, "linear", 20, 120, layer, "forward", kLayer, shapes);
  const int32_t attention =
      made.range(RangeKind::op, "rope_attention", 130, 200, layer, "forward", kLayer, "(4, 24)");
  const int32_t backward = made.range(RangeKind::phase, "backward", 400, 700, -1, "backward");
  const int32_t linear_b =
      made.range(RangeKind::op, "linear", 410, 500, backward, "backward", kLayer, shapes, true);
  const int32_t cast_b =
      made.range(RangeKind::op, "cast", 440, 480, linear_b, "backward", kLayer, "", true);
  const int32_t optimizer = made.range(RangeKind::phase, "optimizer", 700, 800, -1, "optimizer");
  made.kernel(kGemm, 50, 250, linear, made.call("cudaLaunchKernelExC", 30, 40, linear));
  made.kernel(kAttention, 250, 350, attention,
              made.call("cudaLaunchKernelExC", 140, 150, attention));
  made.kernel(kGemm, 450, 650, linear_b, made.call("cudaLaunchKernelExC", 420, 430, linear_b));
  made.kernel(kCast, 650, 700, cast_b, made.call("cudaLaunchKernel", 450, 460, cast_b));
  made.kernel(kAdamW, 730, 830, optimizer, made.call("cudaLaunchKernel", 710, 720, optimizer));
  made.device(DeviceEventKind::copy, "copy device to host", 850, 870, -1, 0, 4096);
  made.call("cudaStreamSynchronize", 820, 980, -1);
  made.memory(5, 1 << 20, 4 << 20);
  made.memory(300, 3 << 20, 4 << 20);
  made.memory(900, 1 << 20, 4 << 20);
}

// Two such steps, preceded by a kernel and an op outside of steps.
inline Profile two_steps() {
  ProfileMaker made;
  made.profile.device = "NVIDIA H200";
  made.profile.target = "train";
  made.profile.on_gpu = true;
  made.profile.gpu_times = GpuTimes::cupti;
  made.now = 1000;
  made.kernel(kGemm, 10, 400, made.range(RangeKind::op, "linear", 0, 300, -1, ""), 0);
  made.now = 2000;
  add_step(made);
  made.now = 3100;
  add_step(made);
  return std::move(made.profile);
}

// Two steps that replay a graph of two kernels, captured before them. Each takes 100 us: 40 and 30
// for the kernels, and 10 between them.
inline Profile captured_steps() {
  ProfileMaker made;
  made.profile.device = "NVIDIA H200";
  made.profile.target = "train";
  made.profile.on_gpu = true;
  made.profile.captured = true;
  made.profile.gpu_times = GpuTimes::cupti;
  const int32_t forward = made.range(RangeKind::phase, "forward", 0, 50, -1, "forward");
  const int32_t linear = made.range(RangeKind::op, "linear", 10, 20, forward, "forward", "lm_head");
  const int32_t add = made.range(RangeKind::op, "add", 30, 40, forward, "forward");
  for (made.now = 1000; made.now < 1200; made.now += 100) {
    made.step(0, 100);
    const uint64_t launch = made.call("cudaGraphLaunch", 2, 12, -1);
    made.kernel(kGemm, 15, 55, linear, launch);
    made.kernel("add_kernel", 65, 95, add, launch);
  }
  return std::move(made.profile);
}

// One step of 100 us on a GPU: a product of 50, beside and behind it 60 of a collective's kernel,
// 20 of which are exposed; then a copy of 15 of a collective, with nothing beside it, and one of 5
// that is none.
inline Profile two_ranks() {
  ProfileMaker made;
  made.profile.device = "NVIDIA H200";
  made.profile.target = "train";
  made.profile.ranks = "rank 0 of 2 over NCCL 2.28.3";
  made.profile.on_gpu = true;
  made.profile.gpu_times = GpuTimes::cupti;
  made.step(0, 100);
  const int32_t linear = made.range(RangeKind::op, "linear", 0, 10, -1, "forward");
  const int32_t exchange = made.range(RangeKind::op, "exchange", 0, 12, -1, "backward");
  const int32_t gather = made.range(RangeKind::op, "gather", 0, 14, -1, "");
  made.kernel(kGemm, 0, 50, linear, 0);
  const auto beside = [&](DeviceEventKind kind, const char* name, int64_t begin, int64_t end,
                          int32_t range) { made.device(kind, name, begin, end, range, 0, 64, 8); };
  beside(DeviceEventKind::kernel, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 10,
         70, exchange);
  beside(DeviceEventKind::copy, "copy device to device", 75, 90, gather);
  beside(DeviceEventKind::copy, "copy device to host", 95, 100, -1);
  return std::move(made.profile);
}

// One step of 100 us on a CPU: 60 in a product, 20 of them in a nested cast, 15 in attention.
inline Profile cpu_step() {
  ProfileMaker made;
  made.profile.device = "a CPU";
  made.profile.target = "forward";
  made.step(0, 100);
  const int32_t forward = made.range(RangeKind::phase, "forward", 5, 95, -1, "forward");
  const int32_t linear = made.range(RangeKind::op, "linear", 10, 70, forward, "forward");
  made.range(RangeKind::op, "cast", 20, 40, linear, "forward");
  made.range(RangeKind::op, "flash_attention", 75, 90, forward, "forward");
  return std::move(made.profile);
}

// The same on a GPU, with ops timed by CUDA events: 50 in the product, 10 of them in the cast.
inline Profile event_times() {
  ProfileMaker made;
  made.profile.device = "NVIDIA H200";
  made.profile.target = "forward";
  made.profile.on_gpu = true;
  made.profile.gpu_times = GpuTimes::events;
  made.step(0, 100);
  const int32_t forward = made.range(RangeKind::phase, "forward", 0, 50, -1, "forward");
  const int32_t linear = made.range(RangeKind::op, "linear", 10, 40, forward, "forward");
  const int32_t cast = made.range(RangeKind::op, "cast", 20, 30, linear, "forward");
  made.device(DeviceEventKind::op, "linear", 20, 70, linear, 0);
  made.device(DeviceEventKind::op, "cast", 30, 40, cast, 0);
  return std::move(made.profile);
}

}  // namespace quern::testing_support
