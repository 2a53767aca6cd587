#include "data/dataset.h"

#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "data/text_corpus.h"
#include "io/checksum.h"
#include "io/folder.h"
#include "io/input_files.h"
#include "io/python_line.h"
#include "text/byte_tokenizer.h"

namespace quern {

namespace {

namespace fs = std::filesystem;

// The token files of a prepared folder: PART_00000.bin and so on, sorted by name.
std::vector<fs::path> part_files(const fs::path& folder, const std::string& part) {
  std::vector<fs::path> files;
  std::error_code ignored;  // opening the path reports it
  for (const fs::path& file : entries_of(folder, ignored)) {
    const std::string name = file.filename().string();
    if (name.starts_with(part + "_") && name.ends_with(".bin")) files.push_back(file);
  }
  return files;
}

bool is_pattern(const std::string& path) {
  std::error_code ignored;
  return path.find_first_of("*?[") != std::string::npos && !fs::exists(path, ignored);
}

bool is_text(const std::string& path, DataFormat format) {
  if (format != DataFormat::automatic) return format == DataFormat::text;
  if (is_pattern(path)) return false;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    return part_files(path, "train").empty() && part_files(path, "validation").empty();
  }
  return fs::path(path).extension() != ".bin" && !has_llmc_magic(path);
}

// The token files of `path` for a part, "train" or "validation".
std::vector<fs::path> token_files(const std::string& path, DataFormat format, const char* part) {
  if (is_pattern(path)) {
    std::vector<fs::path> files = find_input_files({&path, 1});
    for (const fs::path& file : files) {
      QUERN_CHECK(!is_text(file.string(), format), path, ": matches ", file.string(),
                  ", which is not a token file: a pattern may match only token files");
    }
    return files;
  }
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return {path};
  std::vector<fs::path> files = part_files(path, part);
  QUERN_CHECK(!files.empty(), path, ": folder has no ", part, "_*.bin");
  return files;
}

TokenSource open_source(const std::string& path, DataFormat format, const char* part) {
  const std::string hint = hub_hint(path, HubKind::dataset);
  QUERN_CHECK(hint.empty(), path, ": cannot be opened: No such file or directory", hint);
  if (is_text(path, format)) {
    return TokenSource(read_text(path, format == DataFormat::text), path);
  }
  std::vector<TokenFile> files;
  for (const fs::path& file : token_files(path, format, part)) {
    files.push_back(TokenFile::open(file, format));
  }
  const std::string name = files.size() == 1 ? files[0].path().string() : path;
  return TokenSource(std::move(files), name);
}

// `part`: "its training part ", or empty for a whole file.
void check_length(const TokenSource& source, const char* part, int64_t context) {
  QUERN_CHECK(source.size() > context, source.name(), ": too short: ", part, "has ", source.size(),
              " tokens, expected at least ctx + 1 = ", context + 1);
}

}  // namespace

// A document may continue in the next file, as `quern data prepare` writes it, so the end of a file
// ends no document.
struct TokenSource::Shards {
  std::vector<TokenFile> files;
  std::vector<int64_t> begins;  // position of each file's first token, and the total size

  explicit Shards(std::vector<TokenFile> all) : files(std::move(all)), begins{0} {
    for (const TokenFile& file : files) begins.push_back(begins.back() + file.size());
  }
  size_t file_of(int64_t position) const {
    const auto after = std::upper_bound(begins.begin(), begins.end(), position);
    return static_cast<size_t>(after - begins.begin()) - 1;
  }
  void copy(int64_t begin, int64_t count, int32_t* out) const {
    for (size_t i = file_of(begin); count > 0; ++i) {
      const int64_t here = std::min(count, begins[i + 1] - begin);
      files[i].copy(begin - begins[i], here, out);
      begin += here;
      out += here;
      count -= here;
    }
  }
};

TokenSource::TokenSource(std::vector<uint16_t> tokens, std::string name)
    : name_(std::move(name)), size_(static_cast<int64_t>(tokens.size())) {
  corpus_ = std::make_shared<const std::vector<uint16_t>>(std::move(tokens));
}

TokenSource::TokenSource(std::vector<int32_t> tokens, std::string name)
    : name_(std::move(name)), size_(static_cast<int64_t>(tokens.size())) {
  corpus_ = std::make_shared<const std::vector<int32_t>>(std::move(tokens));
}

TokenSource::TokenSource(std::vector<TokenFile> files, std::string name) : name_(std::move(name)) {
  const auto shards = std::make_shared<const Shards>(std::move(files));
  size_ = shards->begins.back();
  corpus_ = shards;
}

TokenSource::TokenSource(TokenFile file) {
  std::string name = file.path().string();
  std::vector<TokenFile> files;
  files.push_back(std::move(file));
  *this = TokenSource(std::move(files), std::move(name));
}

std::span<const TokenFile> TokenSource::files() const {
  const Files* files = std::get_if<Files>(&corpus_);
  return files ? std::span<const TokenFile>((*files)->files) : std::span<const TokenFile>();
}

std::string TokenSource::place(int64_t position) const {
  const Files* files = std::get_if<Files>(&corpus_);
  if (!files) return cat(name_, ": token ", position);
  const size_t i = (*files)->file_of(position);
  return cat((*files)->files[i].path().string(), ": token ", position - (*files)->begins[i]);
}

void TokenSource::copy(int64_t begin, int64_t count, int32_t* out) const {
  QUERN_CHECK(begin >= 0 && count >= 0 && begin <= size_ && count <= size_ - begin, name_,
              ": tokens [", begin, ", ", begin, " + ", count, ") asked for, there are ", size_);
  if (count == 0) return;
  const auto copy_from = [&](const auto& corpus) {
    if constexpr (std::is_convertible_v<decltype(corpus), Files>) {
      corpus->copy(begin_ + begin, count, out);
    } else {
      std::copy_n(corpus->begin() + begin_ + begin, count, out);
    }
  };
  std::visit(copy_from, corpus_);
}

std::string TokenSource::fingerprint() const {
  constexpr int64_t kBlocks = 64, kBlock = 4096;
  DigestStream digest;
  std::vector<int32_t> tokens(static_cast<size_t>(std::min(kBlock, size_)));
  const int64_t step = std::max(kBlock, size_ / kBlocks);
  for (int64_t begin = 0; begin < size_; begin += step) {
    const auto here = std::span(tokens).first(static_cast<size_t>(std::min(kBlock, size_ - begin)));
    copy(begin, std::ssize(here), here.data());
    digest.add(std::as_bytes(here));
  }
  return cat(size_, " tokens, checksum ", hex(digest.digest().xxh3));
}

TokenSource TokenSource::slice(int64_t begin, int64_t end) const {
  QUERN_CHECK(0 <= begin && begin <= end && end <= size_, name_, ": slice [", begin, ", ", end,
              ") of ", size_, " tokens");
  TokenSource part = *this;
  part.begin_ += begin;
  part.size_ = end - begin;
  return part;
}

// Compares tokens as unsigned: as int32, a uint32 of 2^31 or more is negative.
int64_t TokenSource::largest_token() const {
  int64_t largest = -1;
  for_each_block([&](int64_t, std::span<const int32_t> tokens) {
    for (const int32_t token : tokens) {
      largest = std::max(largest, int64_t{static_cast<uint32_t>(token)});
    }
  });
  return largest;
}

void TokenSource::check_vocabulary(int64_t vocab_size) const {
  for_each_block([&](int64_t begin, std::span<const int32_t> tokens) {
    check_tokens(begin, tokens, vocab_size);
  });
}

void TokenSource::check_tokens(int64_t begin, std::span<const int32_t> tokens,
                               int64_t vocab_size) const {
  const auto bad = std::find_if(tokens.begin(), tokens.end(), [=](int32_t token) {
    return int64_t{static_cast<uint32_t>(token)} >= vocab_size;
  });
  if (bad == tokens.end()) return;
  fail(cat(place(begin_ + begin + (bad - tokens.begin())), " is ", static_cast<uint32_t>(*bad),
           ", expected less than the vocabulary size ", vocab_size));
}

int64_t Dataset::vocabulary() const {
  if (is_text) return kByteVocabulary;
  return 1 + std::max(train.largest_token(), validation.largest_token());
}

bool has_validation_files(const std::string& path) {
  return !part_files(path, "validation").empty();
}

Dataset encode_text(const Dataset& text, const Tokenizer& tokenizer) {
  QUERN_CHECK(text.is_text, text.train.name(), ": is a token file, expected text");
  std::vector<int32_t> from(static_cast<size_t>(text.train.size())), tokens;
  text.train.copy(0, text.train.size(), from.data());
  const auto encoder = tokenizer.encoder();
  for (auto begin = from.begin(); begin != from.end();) {
    const auto end = std::find(begin, from.end(), kEndOfText);
    encoder->encode(std::string(begin, end), tokens);
    if (tokenizer.end_token()) tokens.push_back(*tokenizer.end_token());
    begin = end == from.end() ? end : end + 1;
  }
  Dataset encoded;
  encoded.train = TokenSource(std::move(tokens), text.train.name());
  return encoded;
}

Dataset open_dataset(const DataOptions& options, int64_t context) {
  QUERN_CHECK(!options.train.empty(), "data: no training data given (train)");
  QUERN_CHECK(options.validation_fraction >= 0 && options.validation_fraction < 1,
              "data: validation_fraction is ", options.validation_fraction,
              ", expected 0 or more and less than 1");
  Dataset data;
  data.is_text = is_text(options.train, options.format);
  data.train = open_source(options.train, options.format, "train");
  bool has_validation = true, is_split = false;
  const bool in_folder =
      !data.is_text && options.validation_fraction > 0 && has_validation_files(options.train);
  if (options.validation.empty() && in_folder) {
    data.validation = open_source(options.train, options.format, "validation");
  } else if (!options.validation.empty()) {
    const bool validation_is_text = is_text(options.validation, options.format);
    QUERN_CHECK(validation_is_text == data.is_text, options.validation, ": is ",
                validation_is_text ? "text" : "a token file", ", but ", options.train, " is ",
                data.is_text ? "text" : "a token file");
    data.validation = open_source(options.validation, options.format, "validation");
  } else {
    const TokenSource all = data.train;
    // 1e-6 keeps whole numbers of tokens whole: a fraction such as 0.1 has no exact double.
    const double train_tokens =
        static_cast<double>(all.size()) * (1.0 - options.validation_fraction) + 1e-6;
    const auto cut = static_cast<int64_t>(std::floor(train_tokens));
    data.train = all.slice(0, cut);
    data.validation = all.slice(cut, all.size());
    has_validation = is_split = options.validation_fraction > 0;
  }
  check_length(data.train, is_split ? "its training part " : "", context);
  if (has_validation)
    check_length(data.validation, is_split ? "its validation part " : "", context);
  return data;
}

}  // namespace quern
