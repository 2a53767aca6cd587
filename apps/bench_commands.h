// The benchmarks of `quern bench`, one file each. `args` come after the benchmark's name; they
// return the exit code and throw as the subcommands do.
#pragma once

#include "commands.h"

namespace quern {

int run_bench_step(const Arguments& args);
int run_bench_attention(const Arguments& args);
int run_bench_kernels(const Arguments& args);
int run_bench_matmul(const Arguments& args);
int run_bench_mlp(const Arguments& args);
int run_bench_decode(const Arguments& args);
int run_bench_accumulate(const Arguments& args);
int run_bench_dtypes(const Arguments& args);

}  // namespace quern
