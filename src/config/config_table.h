// The one declarative table of the configuration. Flags, file keys, --help, docs/configuration.md
// and the resolved config.toml all come from it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/config.h"

namespace quern {

// A choice is a std::string.
using ConfigValue = std::variant<bool, int64_t, double, std::string>;
enum class ValueKind { boolean, integer, real, text, choice };

struct ConfigKey {
  std::string section;
  std::string name;  // the key in its section; also the flag
  ValueKind kind;
  std::string expected;  // "an integer from 1 to 65536", "one of naive, flash"
  std::string help;
  std::function<ConfigValue(const Config&)> get;
  std::function<bool(Config&, const ConfigValue&)> set;  // false: invalid value, nothing was set
  // JSON pointer of a ModelConfig's field in a checkpoint's manifest ("/rope_scaling/factor"); a
  // manifest without it means the default. Empty: not such a field.
  std::string manifest = {};
  std::vector<std::string> choices = {};  // the values of a choice or a boolean
};

// In the order of printing. `size` comes before the dimensions that it sets.
const std::vector<ConfigKey>& config_table();
const ConfigKey* find_key(std::string_view name);  // null when unknown
std::vector<std::string> section_names();
// The fields of a ModelConfig.
const std::vector<const ConfigKey*>& model_keys();
// A configuration with these fields; its other keys have their defaults.
Config config_of(const ModelConfig& model);

// Parses `text` as the key's kind; empty when it is not of that kind.
std::optional<ConfigValue> parse_value(const ConfigKey& key, std::string_view text);

// The value in TOML: true, 12, 0.001, "text".
std::string to_toml(const ConfigValue& value);
// A key's value without quotes: bf16, not "bf16". Throws for an unknown key.
std::string value_text(const Config& config, std::string_view name);

}  // namespace quern
