#include "bench/settings.h"

#include "config/config_table.h"

namespace quern {

Fields setting_fields(const std::vector<Setting>& settings, const Config& config,
                      const std::set<std::string>& varying) {
  Fields fields;
  for (const auto& [name, key, width, always] : settings) {
    const bool varies = varying.contains(name);
    if (!varies && !always) continue;
    fields.push_back(
        {{varies ? name : "", key, 0, width, Align::left}, Cell(value_text(config, name))});
  }
  return fields;
}

std::string shared_settings(const std::vector<Setting>& settings, const Config& config,
                            const std::set<std::string>& varying) {
  std::string line = cat("vocab ", config.model.vocab_size);
  for (const Setting& setting : settings) {
    if (varying.contains(setting.name) || !setting.always) continue;
    line += cat(", ", setting.name, " ", value_text(config, setting.name));
  }
  return line;
}

}  // namespace quern
