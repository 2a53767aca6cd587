// quern verify-run: checks every file of a run folder.
#include "report/verify_run.h"

#include <fmt/format.h>

#include "base/error.h"
#include "bench_flags.h"
#include "commands.h"
#include "config/config_parse.h"
#include "io/utf8.h"

namespace quern {

namespace {

int run_verify_run(const Arguments& args) {
  const ParsedArgs parsed = parse_command(kVerifyRunCommand, args);
  if (parsed.positional.size() != 1) {
    throw UsageError(fmt::format("verify-run: found {} arguments, expected one run folder\n{}",
                                 parsed.positional.size(), kVerifyRunCommand.usage));
  }
  const RunCheck check = verify_run(parsed.positional[0]);
  for (const RunFileCheck& row : check.files) {
    const bool damaged = !row.damage.empty();
    fmt::print("{:<27} {:<8} {}\n", printable_utf8(row.file), damaged ? "DAMAGED" : "ok",
               printable_utf8(damaged ? row.damage : row.found));
  }
  fmt::print("{} of {} damaged; newest intact checkpoint: {}\n", check.damaged(),
             check.files.size(), check.newest_intact.value_or("none"));
  return check.damaged() == 0 ? 0 : 1;
}

}  // namespace

const Command kVerifyRunCommand{.name = "verify-run",
                                .summary = "check every file of a run folder",
                                .usage = R"(Usage: quern verify-run RUN

Checks every file of the folder RUN and changes none: the configuration and its
checksum, the metrics, the tokenizer, and each checkpoint with its checksums,
shapes, finite weights and optimizer state. Prints a line for each, and the
newest intact checkpoint, from which --resume continues. Exits with 1 when a
file is damaged.
)",
                                .run = run_verify_run,
                                .near_words = {"fsck", "check", "check_run"}};

}  // namespace quern
