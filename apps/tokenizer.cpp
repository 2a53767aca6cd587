// quern tokenizer encode, decode and info.
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <optional>

#include "base/error.h"
#include "bench_flags.h"
#include "commands.h"
#include "config/config_parse.h"
#include "io/mapped_file.h"
#include "text/tokenizer_files.h"

namespace quern {

namespace {

std::string read_standard_input() {
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

std::string read_input(const std::string& path) {
  if (path == "-") return read_standard_input();
  return std::string(MappedFile::open(path).text());
}

void append_tokens(std::string_view words, std::vector<int32_t>& tokens) {
  constexpr std::string_view kBetween = " ,\t\r\n";
  for (size_t at; (at = words.find_first_not_of(kBetween)) != std::string_view::npos;) {
    words.remove_prefix(at);
    const std::string_view word = words.substr(0, words.find_first_of(kBetween));
    const auto token = parse_number<int32_t>(word);
    QUERN_CHECK(token, "tokenizer decode: token ", tokens.size(), " is '", word,
                "', expected a number");
    tokens.push_back(*token);
    words.remove_prefix(word.size());
  }
}

int run_tokenizer_encode(const Arguments& args) {
  const ParsedArgs parsed = parse_command(kTokenizerEncodeCommand, args, "no TOKENIZER", 1);
  const bool has_text = parsed.extra_given.contains("text");
  if (parsed.positional.size() != (has_text ? 1u : 2u)) {
    throw UsageError(cat("tokenizer encode: expected either --text or one FILE\n",
                         kTokenizerEncodeCommand.usage));
  }
  const auto tokenizer = open_tokenizer(parsed.positional[0]);
  const std::string text = has_text ? parsed.extra.at("text") : read_input(parsed.positional[1]);
  fmt::print("{}\n", fmt::join(tokenizer->encode(text), " "));
  return 0;
}

int run_tokenizer_decode(const Arguments& args) {
  const ParsedArgs parsed = parse_command(kTokenizerDecodeCommand, args, "no TOKENIZER", 1);
  const auto tokenizer = open_tokenizer(parsed.positional[0]);
  std::vector<int32_t> tokens;
  for (size_t i = 1; i < parsed.positional.size(); ++i) {
    append_tokens(parsed.positional[i], tokens);
  }
  if (parsed.positional.size() == 1) append_tokens(read_standard_input(), tokens);
  const std::string text = tokenizer->decode(tokens);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

int run_tokenizer_info(const Arguments& args) {
  const ParsedArgs parsed =
      parse_command(kTokenizerInfoCommand, args, "expected one TOKENIZER", 1, 1);
  const auto tokenizer = open_tokenizer(parsed.positional[0]);
  const auto text_of = [](std::optional<int32_t> token) {
    return token ? std::to_string(*token) : "none";
  };
  fmt::print("kind        {}\nvocabulary  {}\nbegin       {}\nend         {}\nhash        {}\n",
             tokenizer->kind(), tokenizer->vocabulary(), text_of(tokenizer->begin_token()),
             text_of(tokenizer->end_token()), tokenizer->hash());
  return 0;
}

}  // namespace

const Command kTokenizerEncodeCommand{
    "tokenizer encode",
    "print the tokens of a text",
    R"(Usage: quern tokenizer encode TOKENIZER (--text TEXT | FILE)

Prints the tokens of a text, separated by spaces; FILE may be - for standard
input. TOKENIZER is bytes, a tokenizer.model, a tokenizer.json, or a folder
with one: a Hugging Face folder, a run, or prepared data.
)",
    run_tokenizer_encode,
    {{"text", "the text", "", false, nullptr, true}}};

const Command kTokenizerDecodeCommand{"tokenizer decode", "print the text of tokens",
                                      R"(Usage: quern tokenizer decode TOKENIZER [TOKEN ...]

Prints the text of tokens, separated by spaces or commas, byte by byte. Without
tokens it reads them from standard input. Special tokens have no text.
)",
                                      run_tokenizer_decode};

const Command kTokenizerInfoCommand{"tokenizer info", "describe a tokenizer",
                                    R"(Usage: quern tokenizer info TOKENIZER

Prints kind, vocabulary, begin and end token, and the hash that identifies the
tokenizer in token files and checkpoints.
)",
                                    run_tokenizer_info};

}  // namespace quern
