// quern info: the build, the processors, the libraries.
#include <fmt/format.h>
#include <spdlog/version.h>
#include <sys/utsname.h>
#include <toml++/impl/version.h>
#include <unistd.h>
#include <xxhash.h>

#include <Eigen/Core>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/build_info.h"
#include "base/device.h"
#include "commands.h"
#include "config/config_parse.h"
#include "kernels/cpu/level.h"
#include "tensor/cuda_runtime.h"

namespace quern {

namespace {

void line(const char* name, const std::string& value) {
  fmt::print("  {:<14} {}\n", name, value);
}

std::string gibibytes(int64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30));
}

void print_build() {
  const BuildInfo& build = build_info();
  fmt::print("build\n");
  line("version", fmt::format("{} ({})", build.version, build.commit));
  line("type", build.build_type);
  line("compiler", build.compiler);
  line("flags", build.flags);
  line("CUDA", kBuiltWithCuda ? fmt::format("{}, for {}", build.cuda, build.cuda_architectures)
                              : "none: built with QUERN_CUDA=OFF, or nvcc was not found");
}

// The value of the first line "key : value" of /proc/cpuinfo; "unknown" without one.
std::string cpu_info(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string text; std::getline(file, text);) {
    if (text.starts_with(key) && text.find(": ") != std::string::npos) {
      return text.substr(text.find(": ") + 2);
    }
  }
  return "unknown";
}

// The level of the x86-64 psABI, from the extensions that distinguish them.
std::string instruction_set() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
  const bool v3 = v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  return v4 ? "x86-64-v4" : v3 ? "x86-64-v3" : v2 ? "x86-64-v2" : "x86-64";
#else
  utsname machine{};
  return uname(&machine) == 0 ? machine.machine : "unknown";
#endif
}

void print_cpu() {
  const int64_t page = sysconf(_SC_PAGESIZE);
  fmt::print("\nCPU\n");
  line("name", cpu_info("model name"));
  line("cores", fmt::format("{}", sysconf(_SC_NPROCESSORS_ONLN)));
  line("instructions", instruction_set());
  line("kernels",
       fmt::format("{}, of {}", kernels::cpu::level(), fmt::join(kernels::cpu::levels(), ", ")));
  line("memory", fmt::format("{}, {} free", gibibytes(sysconf(_SC_PHYS_PAGES) * page),
                             gibibytes(sysconf(_SC_AVPHYS_PAGES) * page)));
}

std::string why_no_gpu() {
  if (!kBuiltWithCuda) return "this build has no CUDA code";
  const std::string driver = cuda::driver_version();
  if (driver == "0.0") return "no NVIDIA driver was found";
  return fmt::format("the driver, for CUDA {}, reports none to this build's runtime, CUDA {}",
                     driver, cuda::runtime_version());
}

void print_gpus() {
  const int count = cuda::device_count();
  fmt::print("\nGPU\n");
  if (count == 0) return line("none", why_no_gpu());
  line("driver", fmt::format("for CUDA {}", cuda::driver_version()));
  for (int i = 0; i < count; ++i) {
    const cuda::DeviceInfo gpu = cuda::device_info(i);
    line(fmt::format("cuda:{}", i).c_str(),
         fmt::format("{}, compute capability {}.{}, {} multiprocessors", gpu.name, gpu.major,
                     gpu.minor, gpu.multiprocessors));
    line("", fmt::format("{}, {} free; {:.0f} GB/s; {} KiB shared memory a block",
                         gibibytes(gpu.total_bytes), gibibytes(gpu.free_bytes),
                         gpu.memory_bandwidth / 1e9, gpu.shared_bytes_per_block / 1024));
  }
}

void print_libraries() {
  const auto version = [](int major, int minor, int patch) {
    return fmt::format("{}.{}.{}", major, minor, patch);
  };
  fmt::print("\nlibraries\n");
  if (kBuiltWithCuda) line("CUDA runtime", cuda::runtime_version());
  line("Eigen", version(EIGEN_WORLD_VERSION, EIGEN_MAJOR_VERSION, EIGEN_MINOR_VERSION));
  line("fmt", version(FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100));
  line("spdlog", version(SPDLOG_VER_MAJOR, SPDLOG_VER_MINOR, SPDLOG_VER_PATCH));
  line("nlohmann-json", version(NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                                NLOHMANN_JSON_VERSION_PATCH));
  line("toml++", version(TOML_LIB_MAJOR, TOML_LIB_MINOR, TOML_LIB_PATCH));
  line("xxHash", version(XXH_VERSION_MAJOR, XXH_VERSION_MINOR, XXH_VERSION_RELEASE));
}

int run_info(const Arguments& args) {
  if (!args.empty()) throw UsageError(cat("info: found '", args[0], "', expected nothing"));
  print_build();
  print_cpu();
  print_gpus();
  print_libraries();
  return 0;
}

}  // namespace

const Command kInfoCommand{.name = "info",
                           .summary = "build, processors and libraries",
                           .usage = R"(Usage: quern info

Prints version, compiler and libraries of this build, and the processors and
GPUs of this machine.
)",
                           .run = run_info,
                           .near_words = {"devices", "gpu", "about", "doctor"}};

}  // namespace quern
