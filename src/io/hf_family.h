// The model families of Hugging Face transformers that a TransformerLM computes, and reading their
// config.json member by member. For the sources of this folder.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"

namespace quern {

struct HfFamily {
  const char* model_type;
  const char* architecture;
  bool qkv_bias, qk_norm;
  // What transformers takes for keys that are absent; 0: heads, and hidden_size / heads.
  int64_t context, kv_heads, head_dim;
};

inline constexpr HfFamily kHfFamilies[] = {
    {"llama", "LlamaForCausalLM", false, false, 2048, 0, 0},
    {"mistral", "MistralForCausalLM", false, false, 131072, 8, 0},
    {"qwen2", "Qwen2ForCausalLM", true, false, 32768, 32, 0},
    {"qwen3", "Qwen3ForCausalLM", false, true, 32768, 32, 128},
};

// An object of the file whose members are read by type. A member that is null counts as absent.
struct HfMembers {
  std::string path;
  nlohmann::ordered_json json;

  using Json = nlohmann::ordered_json;

  const Json* find(const char* key) const {
    const auto found = json.find(key);
    return found == json.end() || found->is_null() ? nullptr : &*found;
  }
  // As find, but throws when it is absent.
  const Json& at(const char* key) const {
    const Json* value = find(key);
    QUERN_CHECK(value, path, ": has no ", key);
    return *value;
  }

  [[noreturn]] void refuse(const char* key, const std::string& expected) const {
    std::string found = json.at(key).dump();
    if (found.size() > 80) found = found.substr(0, 80) + "...";
    fail(cat(path, ": ", key, " is ", found, ", expected ", expected));
  }

  int64_t count(const char* key) const {
    constexpr uint64_t kMost = (uint64_t{1} << 31) - 1;
    const Json& value = at(key);
    const bool usable =
        value.is_number_unsigned() && value.get<uint64_t>() >= 1 && value.get<uint64_t>() <= kMost;
    if (!usable) refuse(key, "a whole number from 1 to 2147483647");
    return value.get<int64_t>();
  }
  int64_t count_or(const char* key, int64_t absent) const {
    return find(key) ? count(key) : absent;
  }
  double number(const char* key) const {
    const Json& value = at(key);
    if (!value.is_number()) refuse(key, "a number");
    return value.get<double>();
  }
  double number_or(const char* key, double absent) const {
    return find(key) ? number(key) : absent;
  }
  bool flag_or(const char* key, bool absent) const {
    const Json* value = find(key);
    if (value && !value->is_boolean()) refuse(key, "true or false");
    return value ? value->get<bool>() : absent;
  }
  std::string text(const char* key) const {
    const Json& value = at(key);
    if (!value.is_string()) refuse(key, "a string");
    return value.get<std::string>();
  }

  void only_false(const char* key, const char* why) const {
    if (flag_or(key, false)) refuse(key, cat("false: ", why));
  }
  void only_one(const char* key) const {
    if (number_or(key, 1.0) != 1.0) refuse(key, "1");
  }
};

}  // namespace quern
