// What is printed from the configuration table.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "config/config_parse.h"

namespace quern {

// What --help says of a flag: its help, and its default where it has one.
std::string help_of(const ExtraFlag& flag);
// The flags as --help lists them: the subcommand's own first, then section by section.
std::string config_help(const std::vector<ExtraFlag>& extra = {});
// docs/configuration.md
std::string config_markdown();
// The resolved configuration, every key: parsing it gives an equal Config.
std::string config_toml(const Config& config);
// Writes config_toml to `path`; throws when it cannot be written.
void save_config(const Config& config, const std::string& path);

}  // namespace quern
