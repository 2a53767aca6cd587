// quern tokenizer: finds the subcommand; and encode, decode and info.
#include <fmt/format.h>

#include <charconv>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <optional>

#include "base/error.h"
#include "config/config_parse.h"
#include "io/mapped_file.h"
#include "text/tokenizer_files.h"
#include "tokenizer_commands.h"

namespace quern {

namespace {

const std::vector<Command> kSubcommands = {
    {"train", "learn a subword tokenizer from text", run_tokenizer_train},
    {"encode", "the tokens of a text", run_tokenizer_encode},
    {"decode", "the text of tokens", run_tokenizer_decode},
    {"info", "what a tokenizer is", run_tokenizer_info},
};

constexpr const char* kEncodeUsage =
    "Usage: quern tokenizer encode TOKENIZER (--text TEXT | FILE)\n\n"
    "Prints the tokens of a text, separated by spaces; FILE may be - for standard input.\n"
    "TOKENIZER is bytes, a tokenizer.model, a tokenizer.json, or a folder with one: a Hugging "
    "Face\n"
    "folder, a run, or prepared data.\n";

constexpr const char* kDecodeUsage =
    "Usage: quern tokenizer decode TOKENIZER [TOKEN ...]\n\n"
    "Prints the text of tokens, separated by spaces or commas, byte by byte; without any they are\n"
    "read from standard input. Special tokens stand for no text.\n";

constexpr const char* kInfoUsage =
    "Usage: quern tokenizer info TOKENIZER\n\n"
    "Prints kind, vocabulary, begin and end token, and the hash that token files and checkpoints\n"
    "know it by.\n";

// The arguments of a subcommand that takes no configuration keys; nothing when it was --help.
std::optional<ParsedArgs> parse(const Arguments& args, const char* name, const char* help,
                                const std::vector<ExtraFlag>& flags = {}) {
  ParsedArgs parsed = parse_args(args, flags);
  if (parsed.help) {
    fmt::print("{}", help);
    return {};
  }
  if (!parsed.given.empty()) {
    throw UsageError(
        fmt::format("tokenizer {}: --{} is no flag of it\n{}", name, *parsed.given.begin(), help));
  }
  if (parsed.positional.empty()) {
    throw UsageError(fmt::format("tokenizer {}: no TOKENIZER\n{}", name, help));
  }
  return parsed;
}

std::string read_standard_input() {
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

std::string read_input(const std::string& path) {
  if (path == "-") return read_standard_input();
  const MappedFile file = MappedFile::open(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

void append_tokens(std::string_view words, std::vector<int32_t>& tokens) {
  constexpr std::string_view kBetween = " ,\t\r\n";
  for (size_t at; (at = words.find_first_not_of(kBetween)) != std::string_view::npos;) {
    words.remove_prefix(at);
    const std::string_view word = words.substr(0, words.find_first_of(kBetween));
    int32_t token = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), token);
    QUERN_CHECK(error == std::errc() && end == word.data() + word.size(),
                "tokenizer decode: token ", tokens.size(), " is '", word, "', expected a number");
    tokens.push_back(token);
    words.remove_prefix(word.size());
  }
}

}  // namespace

int run_tokenizer(const Arguments& args) {
  return run_subcommand(
      "tokenizer", kSubcommands,
      "`quern tokenizer SUBCOMMAND --help` says more; docs/tokenizers.md says all.", args);
}

int run_tokenizer_encode(const Arguments& args) {
  const auto parsed = parse(args, "encode", kEncodeUsage, {{"text", "the text", ""}});
  if (!parsed) return 0;
  const bool has_text = parsed->extra_given.contains("text");
  if (parsed->positional.size() != (has_text ? 1u : 2u)) {
    throw UsageError(
        fmt::format("tokenizer encode: expected either --text or one FILE\n{}", kEncodeUsage));
  }
  const auto tokenizer = open_tokenizer(parsed->positional[0]);
  const std::string text = has_text ? parsed->extra.at("text") : read_input(parsed->positional[1]);
  fmt::print("{}\n", fmt::join(tokenizer->encode(text), " "));
  return 0;
}

int run_tokenizer_decode(const Arguments& args) {
  const auto parsed = parse(args, "decode", kDecodeUsage);
  if (!parsed) return 0;
  const auto tokenizer = open_tokenizer(parsed->positional[0]);
  std::vector<int32_t> tokens;
  for (size_t i = 1; i < parsed->positional.size(); ++i) {
    append_tokens(parsed->positional[i], tokens);
  }
  if (parsed->positional.size() == 1) append_tokens(read_standard_input(), tokens);
  const std::string text = tokenizer->decode(tokens);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

int run_tokenizer_info(const Arguments& args) {
  const auto parsed = parse(args, "info", kInfoUsage);
  if (!parsed) return 0;
  if (parsed->positional.size() != 1) {
    throw UsageError(fmt::format("tokenizer info: expected one TOKENIZER\n{}", kInfoUsage));
  }
  const auto tokenizer = open_tokenizer(parsed->positional[0]);
  const auto text_of = [](std::optional<int32_t> token) {
    return token ? std::to_string(*token) : "none";
  };
  fmt::print("kind        {}\nvocabulary  {}\nbegin       {}\nend         {}\nhash        {}\n",
             tokenizer->kind(), tokenizer->vocabulary(), text_of(tokenizer->begin_token()),
             text_of(tokenizer->end_token()), tokenizer->hash());
  return 0;
}

}  // namespace quern
