#include "fuzz/fuzz_targets.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <stdexcept>

#include "bench/golden_case.h"
#include "config/config_parse.h"
#include "data/dataset.h"
#include "data/document_reader.h"
#include "data/prepare/json_text.h"
#include "data/prepare/prepare_journal.h"
#include "data/text_stream.h"
#include "data/token_sidecar.h"
#include "hf/hf_config.h"
#include "hf/huggingface.h"
#include "io/atomic_file.h"
#include "io/byte_stream.h"
#include "io/checksum.h"
#include "io/safetensors.h"
#include "kernels/gemm_algorithms.h"
#include "report/metrics_reader.h"
#include "report/report_run.h"
#include "run/checkpoint.h"
#include "run/train_state.h"
#include "support/compress.h"
#include "support/files.h"
#include "support/heap.h"
#include "support/malformed.h"
#include "text/byte_tokenizer.h"
#include "text/piece_cutter.h"
#include "text/tokenizer_files.h"
#include "text/tokenizer_settings.h"

namespace quern::fuzz {

namespace {

namespace fs = std::filesystem;
using testing_support::read_file;

const std::vector<std::string> kJsonWords = {"{",  "}",    "[",    "]",       ":",       ",",
                                             "\"", "null", "true", "\\u0000", "\\ud800", "\"\":"};

fs::path fixtures() {
  return testing_support::source_folder() / "tests/fixtures";
}

void put(const fs::path& path, std::string_view bytes) {
  testing_support::write_file(path, bytes);
}

// Reads every byte of a file, so that a sanitizer sees a span that is too long.
int64_t sum_of(std::span<const std::byte> bytes) {
  int64_t sum = 0;
  for (const std::byte byte : bytes) sum += static_cast<int64_t>(byte);
  return sum;
}

void read_tensors(const SafetensorsFile& file) {
  for (const auto& entry : file.entries()) {
    if (sum_of(entry.data) < 0) throw std::logic_error("a sum of bytes is negative");
    if (entry.dtype) file.tensor(entry.name);
  }
}

std::string small_safetensors() {
  std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},)"
      R"("empty":{"dtype":"F32","shape":[0],"data_offsets":[32,32]}})";
  uint64_t size = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &size, 8);
  return file + header + std::string(32, 'x');
}

void encode_and_decode(const fs::path& tokenizer_path) {
  const auto tokenizer = open_tokenizer(tokenizer_path);
  const auto ids = tokenizer->encode("The mill  turns\n\xff <|endoftext|> \xe2\x96\x81 1234");
  tokenizer->decode(ids);
}

void read_documents(DocumentReader& reader) {
  TextBlock block;
  while (reader.next(block)) {
    for (const DocumentPart& part : block.parts) {
      if (part.begin + part.size > block.text.size()) throw std::logic_error("a part is too long");
    }
  }
}

DocumentReaderOptions small_blocks(const fs::path& path, const std::string& split_on = "") {
  DocumentReaderOptions options;
  options.path = path;
  options.split_on = split_on;
  options.block = 64;
  return options;
}

// Decompresses in bounded memory; stops after 64 MiB, since a small file may hold any amount.
void read_stream(const fs::path& path) {
  const auto stream = open_byte_stream(path);
  std::string buffer(1 << 16, '\0');
  for (int i = 0; i < 1024 && stream->read(buffer.data(), buffer.size()) > 0; ++i) {
  }
}

class Targets {
 public:
  explicit Targets(fs::path scratch) : scratch_(std::move(scratch)) {}

  std::vector<FuzzTarget> all() {
    weights();
    models();
    tokenizers();
    checkpoints();
    tokens();
    texts();
    settings();
    runs();
    marks();
    gemm_tables();
    return std::move(targets_);
  }

 private:
  using Parse = std::function<void(const std::string&)>;

  // A target that reads the input from a file of its own folder.
  void file(const std::string& target, const std::string& name, std::vector<std::string> seeds,
            std::vector<std::string> words, std::function<void(const fs::path&)> read) {
    const fs::path path = scratch_ / target / name;
    fs::create_directories(path.parent_path());
    text(target, std::move(seeds), std::move(words), [path, read](const std::string& input) {
      put(path, input);
      read(path);
    });
  }

  void text(const std::string& target, std::vector<std::string> seeds,
            std::vector<std::string> words, Parse parse) {
    targets_.push_back({target, std::move(seeds), std::move(words), std::move(parse)});
  }

  void weights() {
    file("safetensors", "model.safetensors", {small_safetensors()},
         {"\"dtype\":", "\"shape\":", "\"data_offsets\":", "\"F8_E4M3\"", "\"I64\"", "[0,0]"},
         [](const fs::path& path) { read_tensors(SafetensorsFile::open(path)); });
    const fs::path shards = scratch_ / "shard_index";
    put(shards / "model-00001-of-00001.safetensors", small_safetensors());
    file("shard_index", "model.safetensors.index.json",
         {R"({"metadata":{"total_size":32},"weight_map":{"a":"model-00001-of-00001.safetensors",)"
          R"("b":"model-00001-of-00001.safetensors","empty":"model-00001-of-00001.safetensors"}})"},
         {"\"../x\"", "\"/etc/passwd\"", "\"weight_map\":", "\"model-00001-of-00001.safetensors\""},
         [](const fs::path& path) { TensorSource::open(path.parent_path()); });
  }

  void models() {
    const fs::path golden = fixtures() / "golden";
    std::vector<std::string> configs;
    for (const char* name : {"gqa_tied", "llama3_rope", "qwen3_norm", "qwen2_bias", "gpt2"}) {
      configs.push_back(read_file(golden / name / "config.json"));
    }
    std::vector<std::string> words = kJsonWords;
    for (const char* word :
         {"\"rope_scaling\":", "\"num_experts\":2,", "\"head_dim\":", "\"yarn\""}) {
      words.push_back(word);
    }
    file("hf_config", "config.json", configs, words, [](const fs::path& path) {
      read_hf_config(path.parent_path());
      read_hf_dtype(path.parent_path());
    });
    // The header alone is the input: a mutant of the whole case would hardly ever hit it.
    const fs::path folder = scratch_ / "golden_case";
    fs::create_directories(folder);
    for (const char* name : {"config.json", "model.safetensors"}) {
      fs::copy_file(golden / "gqa_tied" / name, folder / name, fs::copy_options::skip_existing);
    }
    const std::string expected = read_file(golden / "gqa_tied" / "expected.safetensors");
    uint64_t size = 0;
    std::memcpy(&size, expected.data(), 8);
    const std::string data = expected.substr(8 + size);
    text("golden_case", {expected.substr(8, size)}, kJsonWords,
         [folder, data](const std::string& header) {
           const uint64_t length = header.size();
           std::string file(8, '\0');
           std::memcpy(file.data(), &length, 8);
           put(folder / "expected.safetensors", file + header + data);
           GoldenCase::open(folder);
         });
  }

  void tokenizers() {
    const fs::path folder = fixtures() / "tokenizers";
    std::vector<std::string> words = kJsonWords;
    for (const char* word :
         {"\"ByteLevel\"", "\"Metaspace\"", "\"added_tokens\":", "\"<0x0A>\"",
          "\"byte_fallback\":true", "\"\\u2581\"", "\"Split\"", "(?", "\\p{L}"}) {
      words.push_back(word);
    }
    file("tokenizer_json", "tokenizer.json",
         {read_file(folder / "gpt2.json"), read_file(folder / "llama3.json"),
          read_file(folder / "byte_fallback/phi3.json"),
          read_file(folder / "byte_fallback/gemma.json")},
         words, encode_and_decode);
    const fs::path model = scratch_ / "tokenizer_config";
    put(model / "tokenizer.model", read_file(folder / "exact/tokenizer.model"));
    file("tokenizer_config", "tokenizer_config.json",
         {read_file(folder / "exact/tokenizer_config.json"),
          R"({"add_bos_token":true,"bos_token":{"content":"<s>"},"eos_token":"</s>","legacy":true,)"
          R"("added_tokens_decoder":{"300":{"content":"<x>","special":true,"normalized":false}}})"},
         kJsonWords, [](const fs::path& path) { encode_and_decode(path.parent_path()); });
    file(
        "tokenizer_model", "tokenizer.model",
        {read_file(folder / "exact/tokenizer.model"), read_file(folder / "prefix/tokenizer.model")},
        {}, encode_and_decode);
    gpt2_files(nlohmann::json::parse(read_file(folder / "gpt2.json")).at("model"));
  }

  // GPT-2's older form, with the bytes and the first merges of `model`.
  void gpt2_files(const nlohmann::json& model) {
    nlohmann::json vocabulary = {{"<|endoftext|>", 264}};
    for (const auto& [token, id] : model.at("vocab").items()) {
      if (id < 264) vocabulary[token] = id;
    }
    std::string merges = "#version: 0.2\n";
    for (size_t i = 0; i < 8; ++i) {
      const nlohmann::json& pair = model.at("merges").at(i);
      merges += cat(pair.at(0).get<std::string>(), ' ', pair.at(1).get<std::string>(), '\n');
    }
    const auto read = [](const fs::path& path) { encode_and_decode(path.parent_path()); };
    put(scratch_ / "vocab_json/merges.txt", merges);
    file("vocab_json", "vocab.json", {vocabulary.dump()}, kJsonWords, read);
    put(scratch_ / "merges/vocab.json", vocabulary.dump());
    file("merges", "merges.txt", {merges}, {"#version", "\r\n", "  ", "\xc4\xa0", "h e\n"}, read);
  }

  // Any change of a checkpoint's bytes must be found; the manifest alone may change its spacing.
  void checkpoints() {
    const fs::path original = fixtures() / "run_before_optimizers/checkpoints/step_00000003";
    for (const char* name : {"manifest.json", "model.safetensors", "optimizer.safetensors"}) {
      const std::string seed = read_file(original / name);
      const std::string target = cat("checkpoint_", fs::path(name).stem().string());
      const fs::path copy = scratch_ / target / original.filename();
      fs::create_directories(copy);
      fs::copy(original, copy, fs::copy_options::recursive);
      const bool manifest = target == "checkpoint_manifest";
      file(target, cat(original.filename().string(), "/", name), {seed},
           manifest ? kJsonWords : std::vector<std::string>{},
           [copy, seed, manifest, name](const fs::path&) {
             const Checkpoint checkpoint = open_checkpoint(copy);
             if (!manifest && read_file(copy / name) != seed) {
               throw std::logic_error("a damaged checkpoint was opened");
             }
             if (manifest) state_of(checkpoint);
           });
    }
  }

  void tokens() {
    std::string llmc(1024, '\0');
    const int32_t header[] = {20240520, 1, 4};
    std::memcpy(llmc.data(), header, sizeof(header));
    llmc += std::string("\1\0\2\0\3\0\4\0", 8);
    const auto read = [](const fs::path& path) {
      const TokenFile file = TokenFile::open(path);
      std::vector<int32_t> all(static_cast<size_t>(file.size()));
      file.copy(0, file.size(), all.data());
      TokenSource(file).check_vocabulary(1 << 20);
      if (const auto sidecar = read_token_sidecar(path)) check_token_sidecar(*sidecar, file);
    };
    file("token_file", "tokens.bin", {llmc, std::string("\1\0\2\0\3\0\4\0", 8)}, {}, read);
    const fs::path folder = scratch_ / "token_sidecar";
    put(folder / "tokens.bin", llmc);
    TokenSidecar sidecar;
    sidecar.tokens = 4;
    sidecar.documents = 1;
    sidecar.vocabulary = 5;
    sidecar.end_token = 4;
    sidecar.tokenizer_kind = "bpe";
    sidecar.tokenizer_hash = "0123456789abcdef";
    sidecar.file = digest_of_file(folder / "tokens.bin");
    write_token_sidecar(folder / "tokens.bin", sidecar);
    file("token_sidecar", "tokens.json", {read_file(folder / "tokens.json")}, kJsonWords,
         [read](const fs::path& path) { read(path.parent_path() / "tokens.bin"); });
    prepare_journal();
  }

  // The input is the journal without the checksums of its lines: with them no mutant would get past
  // the first line.
  void prepare_journal() {
    const fs::path path = scratch_ / "prepare_journal";
    const nlohmann::ordered_json settings = {{"tokenizer", "bytes"}, {"seed", 1}};
    const nlohmann::ordered_json sources = {{{"path", "a.txt"}, {"bytes", 9}},
                                            {{"path", "b.txt"}, {"bytes", 7}}};
    {
      PrepareState state;
      PrepareJournal journal = PrepareJournal::create(path, settings, sources);
      journal.checkpoint(state);
      state.finished.push_back({{9, 1234567890123456789}, 2});
      state.source = 1;
      state.skipped["not UTF-8"] = 3;
      journal.checkpoint(state);
    }
    std::istringstream lines(read_file(path));
    std::string seed;
    for (std::string line; std::getline(lines, line);) seed += line.substr(17) + "\n";
    text("prepare_journal", {seed}, kJsonWords,
         [path, settings, sources](const std::string& input) {
           std::string journal;
           for (size_t begin = 0; begin < input.size();) {
             const size_t end = std::min(input.find('\n', begin), input.size());
             const std::string line = input.substr(begin, end - begin);
             journal += cat(checksum_of(line), ' ', line, end < input.size() ? "\n" : "");
             begin = end + 1;
           }
           put(path, journal);
           if (!PrepareJournal::begun(path)) fail("no whole first line");
           PrepareState state;
           PrepareJournal::resume(path, settings, sources, state);
         });
  }

  void texts() {
    const std::string prose = "The mill turns.\n\nThe stones grind \xe2\x96\x81 on.\n";
    file("gzip", "text.gz", {testing_support::gzip(prose), testing_support::gzip("")}, {},
         read_stream);
    file("zstd", "text.zst", {testing_support::zstd(prose), testing_support::zstd("")}, {},
         read_stream);
    file("text", "text.txt", {prose}, {"\n\n", "\r\n", "\xef\xbb\xbf", "\xff"},
         [](const fs::path& path) {
           const ByteTokenizer bytes;
           PieceCutter cutter(bytes);
           const auto reader =
               read_text_documents(open_byte_stream(path), cutter, {}, small_blocks(path, "blank"));
           read_documents(*reader);
           line_at_fraction(path, 0.5);
         });
    file("jsonl", "text.jsonl",
         {"{\"text\": \"The mill\\nturns\", \"n\": [1, {}]}\n{\"text\":\"\"}\n"}, kJsonWords,
         [](const fs::path& path) {
           const auto reader = read_json_lines(open_byte_stream(path), {}, small_blocks(path));
           TextBlock block;
           std::string found;
           while (reader->next(block)) {
             for (size_t begin = 0; begin < block.text.size();) {
               const size_t end = std::min(block.text.find('\n', begin), block.text.size());
               read_json_text(std::string_view(block.text).substr(begin, end - begin), "text",
                              found);
               begin = end + 1;
             }
           }
         });
    text("prompt", {"The\\nmill \\\\ turns|stop\\|here|\\t"}, {"\\n", "\\", "|", "||"},
         [](const std::string& input) {
           unescape(input);
           split_stop_strings(input);
         });
  }

  void settings() {
    const fs::path configs = testing_support::source_folder() / "configs";
    file("config", "config.toml",
         {read_file(configs / "shakespeare-cpu.toml"), read_file(configs / "2.7B.toml"),
          "[model]\nsize = \"small\"\n\"layers\" = 0x2\nheads = 1_2\n"
          "[optimizer]\nlr = 3e-4\n'beta1' = 0.9\n[run]\nout = \"\"\"\na\\u00e9\"\"\"\n"},
         {"[", "]", "[[", "=",   ".",  "\"",   "\"\"\"", "'''", "#",    "{",
          "}", ",", "\n", "nan", "0x", "-inf", "1e9",    "\\u", "\xff", "07:32"},
         [](const fs::path& path) { load_config(path.string()); });
    text("command_line", {"--layers 2 --lr 1e-3 --train x --size=small --tied -- --x"},
         {"--", "=", " ", "--seed", "--betas", "-1", "\xff"}, [](const std::string& input) {
           std::vector<std::string> words(1);
           for (const char c : input) {
             if (c == ' ') words.emplace_back();
             if (c != ' ' && c != '\0') words.back() += c;
           }
           std::erase(words, "--config");  // reads other files
           std::erase_if(words, [](const std::string& w) { return w.starts_with("--config="); });
           parse_args(words);
         });
  }

  void runs() {
    const std::string metrics = read_file(fixtures() / "run_before_optimizers/metrics.jsonl");
    file("metrics", "metrics.jsonl", {metrics, metrics + "{\"step\":4,\"ended\":\"done\"}\n"},
         kJsonWords, [](const fs::path& path) {
           ReportRun run;
           run.metrics = read_metrics(path);
           summarize(run);
         });
    file("metrics_resume", "metrics.jsonl", {metrics}, kJsonWords,
         [](const fs::path& path) { MetricsLog(path, 2).write_validation(3, 1.5); });
    text("samples", {"--- step 10\nThe mill\n--- step 20\nturns\n"}, {"--- step ", "\n", "-"},
         [](const std::string& input) { parse_samples(input); });
  }

  void marks() {
    const fs::path folder = scratch_ / "marks";
    put(folder / "step_00000003/manifest.json", "{}");
    const std::vector<std::string> words = {"step_00000003", "step_", "\n", " ", "# xxh3 "};
    const std::string best = "step_00000003\n", kept = "step_00000003 the last finite weights\n";
    file("mark_best", "checkpoints/best", {best, sealed(best)}, words, [folder](const auto& path) {
      fs::rename(path, folder / "best");
      best_checkpoint(folder);
    });
    file("mark_kept", "checkpoints/kept", {kept, sealed(kept)}, words, [folder](const auto& path) {
      fs::rename(path, folder / "kept");
      kept_checkpoints(folder);
    });
  }

  void gemm_tables() {
    kernels::GemmAlgorithms table("GPU, cuBLASLt 1");
    table.insert({.m = 64, .n = 32, .k = 16}, {1, 2, 3, 4, 5, 6, 7, ~uint64_t{0}});
    table.insert({.m = 1, .n = -1, .k = INT64_MAX}, {});
    std::ostringstream saved;
    table.save(saved);
    text("gemm_table", {saved.str()}, {"\n", " ", "0", "-", "ffffffffffffffff", "; ", "0x"},
         [](const std::string& input) {
           kernels::GemmAlgorithms loaded("GPU, cuBLASLt 1"), again("GPU, cuBLASLt 1");
           std::istringstream in(input);
           if (!loaded.load(in)) fail("another platform");
           std::stringstream text;
           loaded.save(text);
           again.load(text);
           if (again.entries() != loaded.entries()) throw std::logic_error("a table that differs");
         });
  }

  fs::path scratch_;
  std::vector<FuzzTarget> targets_;
};

}  // namespace

std::vector<FuzzTarget> fuzz_targets(const fs::path& scratch) {
  return Targets(scratch).all();
}

std::vector<std::string> past_findings(const FuzzTarget& target) {
  std::vector<fs::path> paths;
  const fs::path folder = fixtures() / "fuzz" / target.name;
  if (fs::exists(folder)) paths.assign(fs::directory_iterator(folder), fs::directory_iterator());
  std::ranges::sort(paths);
  std::vector<std::string> inputs;
  for (const fs::path& path : paths) inputs.push_back(read_file(path));
  return inputs;
}

Outcome run_target(const FuzzTarget& target, const std::string& input, std::string* refusal) {
  const auto most = kMemoryBase + kMemoryFactor * static_cast<int64_t>(input.size());
  std::optional<std::string> message;  // of the error
  {
    const testing_support::HeapLimit limit(most);
    const auto check_memory = [&] {
      if (limit.was_hit()) throw std::logic_error(cat("asks for more than ", most, " bytes"));
    };
    try {
      target.parse(input);
    } catch (const Error& error) {
      check_memory();
      message = error.what();
    } catch (const std::exception&) {
      check_memory();
      throw;
    }
    check_memory();
  }
  if (!message) return Outcome::accepted;
  if (!testing_support::raw_library_text(*message, input).empty()) {
    throw std::logic_error(cat("a message with raw library text: ", *message));
  }
  if (message->empty()) throw std::logic_error("an empty message");
  if (refusal != nullptr) *refusal = *message;
  return Outcome::refused;
}

}  // namespace quern::fuzz
