// The settings of a configuration as columns, for tables of several configurations.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "bench/table.h"
#include "config/config.h"

namespace quern {

// A configuration key as a column. `always`: programs get it even if it does not vary.
struct Setting {
  const char *name, *key;
  int width = 9;
  bool always = true;
};

// People get only the columns of keys in `varying`.
Fields setting_fields(const std::vector<Setting>& settings, const Config& config,
                      const std::set<std::string>& varying);

// "vocab 50, batch 4, ...": the vocabulary, and every setting that does not vary.
std::string shared_settings(const std::vector<Setting>& settings, const Config& config,
                            const std::set<std::string>& varying);

}  // namespace quern
