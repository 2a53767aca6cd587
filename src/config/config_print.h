// Text printed from the configuration table: help, markdown, TOML.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "config/config.h"
#include "config/config_parse.h"
#include "config/config_table.h"

namespace quern {

// A flag's help with its default and, for a key, the values expected.
std::string help_of(const ExtraFlag& flag);
std::string help_of(const ConfigKey& key, const Config& defaults = {});
// The keys that `keys` lists by name or by "[section]", in the table's order, without those that
// `flags` hide.
std::vector<const ConfigKey*> applicable_keys(const std::vector<std::string>& keys,
                                              const std::vector<ExtraFlag>& flags = {});
std::vector<std::string> all_sections();  // "[model]", ...: every key
// `label` before the column `indent`, then the words of `text` from there on, wrapped at `columns`.
std::string labelled(const std::string& label, size_t indent, const std::string& text,
                     size_t columns);
// The flags as --help lists them, within 80 columns: a command's own, then --config and the
// applicable keys, section by section.
std::string config_help(const std::vector<ExtraFlag>& flags, const std::vector<std::string>& keys,
                        const Config& defaults = {});
// The text of docs/configuration.md.
std::string config_markdown();
// The keys with values other than the defaults of the configuration's size, section by section.
// Leaves out [run].
std::vector<std::pair<const ConfigKey*, ConfigValue>> changed_keys(const Config& config);
// Every key of the resolved configuration in TOML; parsing it gives an equal Config.
std::string config_toml(const Config& config);
// Writes config_toml to `path`, sealed (io/checksum.h); throws when it cannot be written.
void save_config(const Config& config, const std::string& path);

}  // namespace quern
