// Builds the rows of the configuration table. A row refers to its struct member, so default, type
// and checks are stated once. Used only by config_table.cpp and config_print.cpp.
#pragma once

#include <cmath>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "config/config_table.h"

namespace quern {

// A range of real numbers; its bounds are inclusive unless open.
struct RealRange {
  double low, high;
  bool open_low = false, open_high = false;

  // Kernels take most numbers in single precision: beta2 = 0.99999999 is 1 there. Both forms must
  // lie in the range, and only zero may become zero.
  bool holds(double x) const {
    const auto single = static_cast<float>(x);
    return holds_exactly(x) && holds_exactly(single) && (x == 0.0) == (single == 0.0f);
  }

 private:
  bool holds_exactly(double x) const {
    return std::isfinite(x) && (open_low ? x > low : x >= low) &&
           (open_high ? x < high : x <= high);
  }
};

inline constexpr double kNoLimit = std::numeric_limits<double>::infinity();

std::string describe(int64_t low, int64_t high);  // "an integer from 1 to 8"
std::string describe(const RealRange& range);     // "a number above 0"
std::string describe_choices(const std::vector<std::string>& names);

// Rows of one section of the table. `section` maps a Config to the struct of their members:
// &Config::data, or a function for a part of the section's struct. `Owner` is that struct or a base
// of it. `manifest` is the prefix of the rows' places in a checkpoint's manifest: "/".
template <class Section>
class SectionRows {
 public:
  SectionRows(std::vector<ConfigKey>& table, std::string name, Section section,
              std::string manifest = {})
      : table_(table),
        name_(std::move(name)),
        section_(std::move(section)),
        manifest_(std::move(manifest)) {}

  template <class Owner, class T>
  ConfigKey& integer(const char* key, T Owner::*member, int64_t low, int64_t high,
                     const char* help) {
    const auto section = section_;
    return add(key, ValueKind::integer, describe(low, high), help, member,
               [=](Config& config, const ConfigValue& value) {
                 const int64_t* x = std::get_if<int64_t>(&value);
                 if (!x || *x < low || *x > high) return false;
                 std::invoke(section, config).*member = static_cast<T>(*x);
                 return true;
               });
  }

  // A TOML integer is accepted too: lr = 1.
  template <class Owner>
  ConfigKey& real(const char* key, double Owner::*member, RealRange range, const char* help) {
    const auto section = section_;
    return add(key, ValueKind::real, describe(range), help, member,
               [=](Config& config, const ConfigValue& value) {
                 const int64_t* whole = std::get_if<int64_t>(&value);
                 const double* x = std::get_if<double>(&value);
                 if (!whole && !x) return false;
                 const double number = x ? *x : static_cast<double>(*whole);
                 if (!range.holds(number)) return false;
                 std::invoke(section, config).*member = number;
                 return true;
               });
  }

  template <class Owner>
  ConfigKey& boolean(const char* key, bool Owner::*member, const char* help) {
    ConfigKey& row =
        add(key, ValueKind::boolean, "true or false", help, member, setter<bool>(member));
    row.choices = {"true", "false"};
    return row;
  }

  template <class Owner>
  ConfigKey& text(const char* key, std::string Owner::*member, const char* expected,
                  const char* help) {
    return add(key, ValueKind::text, expected, help, member, setter<std::string>(member));
  }

  template <class Owner, class E>
  ConfigKey& choice(const char* key, E Owner::*member,
                    std::initializer_list<std::pair<std::string, E>> choices, const char* help) {
    const auto section = section_;
    const std::vector<std::pair<std::string, E>> pairs = choices;
    std::vector<std::string> names;
    names.reserve(pairs.size());
    for (const auto& [name, unused] : pairs) names.push_back(name);
    const auto get = [=](const Config& config) -> ConfigValue {
      for (const auto& [name, value] : pairs) {
        if (std::invoke(section, config).*member == value) return name;
      }
      fail("config: a choice has no name");
    };
    const auto set = [=](Config& config, const ConfigValue& value) {
      const std::string* text = std::get_if<std::string>(&value);
      for (const auto& [name, choice] : pairs) {
        if (!text || *text != name) continue;
        std::invoke(section, config).*member = choice;
        return true;
      }
      return false;
    };
    return add({name_, key, ValueKind::choice, describe_choices(names), help, get, set, "", names});
  }

 private:
  template <class T, class Owner>
  auto setter(T Owner::*member) const {
    return [section = section_, member](Config& config, const ConfigValue& value) {
      const T* x = std::get_if<T>(&value);
      if (x) std::invoke(section, config).*member = *x;
      return x != nullptr;
    };
  }

  template <class Member, class Set>
  ConfigKey& add(const char* key, ValueKind kind, std::string expected, const char* help,
                 Member member, Set set) {
    const auto get = [section = section_, member](const Config& config) -> ConfigValue {
      const auto& x = std::invoke(section, config).*member;
      if constexpr (std::is_same_v<decltype(x), const int&>)
        return static_cast<int64_t>(x);
      else
        return x;
    };
    return add({name_, key, kind, std::move(expected), help, get, set});
  }

  ConfigKey& add(ConfigKey row) {
    if (!manifest_.empty()) row.manifest = manifest_ + row.name;
    return table_.emplace_back(std::move(row));
  }

  std::vector<ConfigKey>& table_;
  std::string name_;
  Section section_;
  std::string manifest_;
};

}  // namespace quern
