// The start-up check of the processor. Compiled for the plain architecture, unlike every other
// file, so that it runs anywhere, and before the static initialisers of those files.
#ifdef QUERN_NEEDS_X86_64_V3

#include <unistd.h>

#include <cstdio>

namespace {

[[gnu::constructor(101)]] void refuse_other_processors() {
  __builtin_cpu_init();
  // Extensions of -march=x86-64-v3 that a compiler is likely to use.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2")) {
    return;
  }
  std::fputs(
      "quern: this processor lacks AVX2, FMA, BMI1 or BMI2 (x86-64-v3), which this build needs; "
      "build on this machine with -DQUERN_NATIVE=ON\n",
      stderr);
  _exit(1);
}

}  // namespace

#endif
