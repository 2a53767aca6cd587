// Difficult text for tokenizers and cutters: words, digits, runs of white space and of line feeds,
// punctuation, other scripts, and optionally invalid UTF-8.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <string>

namespace quern::testing_support {

inline std::string random_text(std::mt19937& random, size_t bytes, bool valid_utf8 = true) {
  static constexpr std::array kParts = {"the",
                                        " quick",
                                        "Brown",
                                        " fox",
                                        "\n",
                                        "\n\n",
                                        " ",
                                        "  ",
                                        "\t",
                                        "\r\n",
                                        "'s",
                                        " don't",
                                        "1234567",
                                        " 42",
                                        "!?",
                                        " --",
                                        "\u00e9",
                                        "e\u0301",
                                        "\u4e2d\u6587",
                                        "\u3002",
                                        "\U0001F600",
                                        "\u00a0",
                                        "\u3000",
                                        "\u2028",
                                        "x\ny",
                                        "a b",
                                        "{\"k\":",
                                        "};\n",
                                        "\u0440\u0443\u0441",
                                        " \u0441\u043b\u043e\u0432\u043e",
                                        ".",
                                        ",\n"};
  static constexpr std::array kInvalid = {"\xFF", "\xC3", "\x80", "\xE4\xB8"};
  std::string text;
  while (text.size() < bytes) {
    if (!valid_utf8 && random() % 20 == 0) {
      text += kInvalid[random() % kInvalid.size()];
    } else {
      text += kParts[random() % kParts.size()];
    }
  }
  return text;
}

}  // namespace quern::testing_support
