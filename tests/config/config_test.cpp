#include "config/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "config/config_parse.h"
#include "config/config_print.h"
#include "config/config_table.h"
#include "io/checksum.h"
#include "support/paths.h"

namespace quern {
namespace {

const std::filesystem::path kSource = testing_support::source_folder();

// A TOML file that lives as long as the test's object.
class TomlFile {
 public:
  explicit TomlFile(const std::string& text) {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::temp_directory_path() / (std::string("quern_config_") + info->name() +
                                                      "_" + std::to_string(++count_) + ".toml");
    std::ofstream(path_) << text;
  }
  ~TomlFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  static inline int count_ = 0;
  std::filesystem::path path_;
};

template <class Fn>
std::string usage_message(Fn fn) {
  try {
    fn();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

std::string args_message(const std::vector<std::string>& args,
                         const std::vector<ExtraFlag>& extra = {}) {
  return usage_message([&] { parse_args(args, extra); });
}

// The message for a file, with its path replaced by FILE.
std::string file_message(const std::string& text) {
  const TomlFile file(text);
  std::string message = usage_message([&] { load_config(file.path()); });
  const size_t at = message.find(file.path());
  return at == std::string::npos ? message : message.replace(at, file.path().size(), "FILE");
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(ConfigTable, NamesAreUniqueAndNotTakenByThePrograms) {
  std::set<std::string> names = {"config", "help"};
  for (const ConfigKey& key : config_table())
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
}

TEST(ConfigTable, SectionsAreContiguous) {
  const std::vector<std::string> sections = section_names();
  EXPECT_EQ(std::set<std::string>(sections.begin(), sections.end()).size(), sections.size());
}

TEST(ConfigTable, EveryDefaultIsInItsOwnRange) {
  for (const ConfigKey& key : config_table()) {
    Config config;
    EXPECT_TRUE(key.set(config, key.get(config))) << key.name;
    EXPECT_EQ(config, Config()) << key.name;
  }
}

TEST(ConfigTable, DefaultDimensionsAreThoseOfTheDefaultSize) {
  ModelConfig model;
  apply_size(model, Config().model.size);
  model.vocab_size = 0;
  EXPECT_EQ(static_cast<const ModelConfig&>(Config().model), model);
}

TEST(ConfigTable, EveryChoiceIsAccepted) {
  int choices = 0;
  for (const ConfigKey& key : config_table()) {
    if (key.kind != ValueKind::choice) continue;
    std::string names = key.expected.substr(std::string("one of ").size());
    std::replace(names.begin(), names.end(), ',', ' ');
    std::istringstream words(names);
    for (std::string name; words >> name; ++choices) {
      Config config;
      EXPECT_TRUE(key.set(config, name)) << key.name << " " << name;
      EXPECT_EQ(value_text(config, key.name), name);
    }
  }
  EXPECT_GE(choices, 30);
}

TEST(ConfigArgs, ReadsEveryForm) {
  const ParsedArgs parsed = parse_args({"text.txt", "--batch", "7", "--lr=0.5", "--weight-decay",
                                        "0", "--tied", "--deterministic", "false", "--stop_token",
                                        "-1", "--prompt=--x", "--size", "small", "--", "--odd"});
  EXPECT_EQ(parsed.config.train.batch, 7);
  EXPECT_EQ(parsed.config.optimizer.lr, 0.5);
  EXPECT_EQ(parsed.config.optimizer.weight_decay, 0.0);
  EXPECT_TRUE(parsed.config.model.tied);
  EXPECT_FALSE(parsed.config.compute.deterministic);
  EXPECT_EQ(parsed.config.sample.stop_token, -1);
  EXPECT_EQ(parsed.config.sample.prompt, "--x");
  EXPECT_EQ(parsed.config.model.d_model, 768);
  EXPECT_EQ(parsed.positional, (std::vector<std::string>{"text.txt", "--odd"}));
  EXPECT_TRUE(parsed.given.contains("batch"));
  EXPECT_FALSE(parsed.given.contains("steps"));
}

TEST(ConfigArgs, SwitchLeavesPositionalAlone) {
  const ParsedArgs parsed = parse_args({"--tied", "text.txt"});
  EXPECT_TRUE(parsed.config.model.tied);
  EXPECT_EQ(parsed.positional, std::vector<std::string>{"text.txt"});
}

TEST(ConfigArgs, FlagBeatsFileInAnyOrder) {
  const TomlFile file("[train]\nbatch = 3\nsteps = 9\n");
  for (const auto& args : {std::vector<std::string>{"--batch", "5", "--config", file.path()},
                           std::vector<std::string>{"--config", file.path(), "--batch", "5"}}) {
    const ParsedArgs parsed = parse_args(args);
    EXPECT_EQ(parsed.config.train.batch, 5);
    EXPECT_EQ(parsed.config.train.steps, 9);
    EXPECT_EQ(parsed.config_file, file.path());
  }
}

TEST(ConfigArgs, DimensionsOverrideTheSizeOfTheirLayer) {
  const TomlFile file("[model]\nlayers = 2\nsize = \"small\"\n");
  EXPECT_EQ(load_config(file.path()).model.layers, 2);
  EXPECT_EQ(load_config(file.path()).model.d_model, 768);
  const Config medium = parse_args({"--size", "medium", "--config", file.path()}).config;
  EXPECT_EQ(medium.model.layers, 24);
  EXPECT_EQ(medium.model.size, "medium");
  EXPECT_EQ(parse_args({"--d_ff", "64", "--size", "medium"}).config.model.d_ff, 64);
}

TEST(ConfigArgs, SizeOfAFlagLeavesNothingOfTheFilesSize) {
  const TomlFile file("[model]\nsize = \"0.5B\"\n");
  const Config config = parse_args({"--config", file.path(), "--size", "small"}).config;
  EXPECT_EQ(config.model.vocab_size, 0);
  EXPECT_FALSE(config.model.tied);
  EXPECT_EQ(config.model.kv_heads, 0);
}

TEST(ConfigArgs, BaseIsKeptWhereNothingIsGiven) {
  Config base;
  base.train.steps = 77;
  EXPECT_EQ(parse_args({"--batch", "2"}, {}, base).config.train.steps, 77);
}

TEST(ConfigArgs, ExtraFlagHidesAKey) {
  const std::vector<ExtraFlag> extra = {{"warmup", "untimed steps", "5"},
                                        {"json", "print JSON", "false", true},
                                        {"phases", "what to time", "fwd"}};
  const ParsedArgs parsed = parse_args({"--warmup", "2", "--json", "--batch", "4"}, extra);
  EXPECT_EQ(parsed.extra.at("warmup"), "2");
  EXPECT_EQ(parsed.extra.at("json"), "true");
  EXPECT_EQ(parsed.extra.at("phases"), "fwd");
  EXPECT_EQ(parsed.config.optimizer.warmup, OptimizerSection().warmup);
  EXPECT_EQ(args_message({"--phase", "x"}, extra), "unknown flag --phase, did you mean --phases?");
}

TEST(ConfigArgs, AnExtraSwitchIsTrueOrFalse) {
  const std::vector<ExtraFlag> extra = {{"json", "print JSON", "false", true}};
  const auto json = [&](const std::vector<std::string>& args) {
    return parse_args(args, extra).extra.at("json");
  };
  EXPECT_EQ(json({"--json"}), "true");
  EXPECT_EQ(json({"--json=true"}), "true");
  EXPECT_EQ(json({"--json", "true"}), "true");
  EXPECT_EQ(json({"--json=false"}), "false");
  EXPECT_EQ(json({"--json", "--json", "false"}), "false");
  for (const char* text : {"True", "yes", "1", "0", ""}) {
    EXPECT_EQ(args_message({cat("--json=", text)}, extra),
              cat("--json is '", text, "', expected true or false"));
  }
}

TEST(ConfigArgs, AnExtraFlagIsEmptyOnlyWhereItMayBe) {
  const std::vector<ExtraFlag> extra = {{"out", "a folder", "here"},
                                        {"text", "the text", "", false, nullptr, true}};
  const std::string message =
      "--out is empty, expected a value; is a variable of the shell not set?";
  EXPECT_EQ(args_message({"--out", ""}, extra), message);
  EXPECT_EQ(args_message({"--out="}, extra), message);
  EXPECT_EQ(parse_args({}, extra).extra.at("text"), "");
  EXPECT_TRUE(parse_args({"--text", ""}, extra).extra_given.contains("text"));
}

TEST(ConfigArgs, AFilesFromIsOfNoUseToAResumedRun) {
  const TomlFile file("[model]\nfrom = \"there\"\n");
  Config base;
  base.model.from = "here";
  const auto resolve = [](Config&, const std::set<std::string>&) { FAIL(); };
  const std::vector<std::string> args{"--config", file.path(), "--resume", "run"};
  EXPECT_EQ(parse_args(args, {}, base, resolve).config.model.from, "here");
  EXPECT_TRUE(args_message({"--from", "there", "--resume", "run"})
                  .starts_with("found --from and --resume"));
}

TEST(ConfigErrors, Flags) {
  EXPECT_EQ(args_message({"--bacth", "4"}), "unknown flag --bacth, did you mean --batch?");
  EXPECT_EQ(args_message({"--qwertyuiop"}), "unknown flag --qwertyuiop");
  EXPECT_EQ(args_message({"-b", "4"}), "unknown flag -b, expected --key value");
  EXPECT_EQ(args_message({"--batch"}),
            "--batch has no value, expected an integer from 1 to 1048576");
  EXPECT_EQ(args_message({"--prompt", "--x"}),
            "--prompt has no value, expected text in UTF-8 (write --prompt=VALUE if it begins with "
            "--)");
  EXPECT_EQ(args_message({"--batch", "0"}), "--batch is 0, expected an integer from 1 to 1048576");
  EXPECT_EQ(args_message({"--batch", "4x"}),
            "--batch is 4x, expected an integer from 1 to 1048576");
  EXPECT_EQ(args_message({"--batch="}), "--batch is empty, expected an integer from 1 to 1048576");
  EXPECT_EQ(args_message({"--beta1", "1"}), "--beta1 is 1, expected a number from 0 to below 1");
  EXPECT_EQ(args_message({"--rope-theta", "0"}), "--rope_theta is 0, expected a number above 0");
  EXPECT_EQ(args_message({"--clip", "nan"}), "--clip is nan, expected a number from 0 up");
  EXPECT_EQ(args_message({"--clip", "inf"}), "--clip is inf, expected a number from 0 up");
  EXPECT_EQ(args_message({"--tied=maybe"}), "--tied is maybe, expected true or false");
  EXPECT_EQ(args_message({"--precision", "int8"}),
            "--precision is int8, expected one of fp32, tf32, bf16, fp8");
  EXPECT_EQ(args_message({"--size", "huge"}),
            "--size is huge, expected one of toy, shakespeare-cpu, shakespeare-gpu, small, medium, "
            "large, xl, 2.7B, 10B, 0.5B, 1.5B, gpt2, gpt2-medium");
  EXPECT_EQ(args_message({"--out", "\xff"}), "--out is \xff, expected a path in UTF-8");
}

TEST(ConfigErrors, IntegersNameTheirRange) {
  for (const char* key : {"seed", "sample_seed"}) {
    const std::string flag = cat("--", key);
    EXPECT_EQ(args_message({flag, "9223372036854775808"}),
              cat(flag,
                  " is 9223372036854775808, expected an integer from 0 to "
                  "9223372036854775807"));
    EXPECT_EQ(args_message({flag, "-1"}),
              cat(flag, " is -1, expected an integer from 0 to 9223372036854775807"));
    EXPECT_EQ(args_message({flag, "9223372036854775807"}), "no UsageError");
  }
  for (const ConfigKey& key : config_table()) {
    if (key.kind != ValueKind::integer) continue;
    EXPECT_TRUE(std::regex_match(key.expected, std::regex("an integer from -?[0-9]+ to [0-9]+")))
        << key.name << ": " << key.expected;
  }
}

TEST(ConfigErrors, File) {
  EXPECT_EQ(file_message("[train]\nsteps = 5\nbacth = 4\n"),
            "FILE:3: unknown key bacth in [train], did you mean batch?");
  EXPECT_EQ(file_message("[optimizer]\nbatch = 4\n"),
            "FILE:2: key batch in [optimizer] belongs in [train]");
  EXPECT_EQ(file_message("batch = 4\n"),
            "FILE:1: key batch at the top of the file belongs in [train]");
  EXPECT_EQ(file_message("train = 4\n"), "FILE:1: train is a value, expected a section [train]");
  EXPECT_EQ(file_message("\n[optimiser]\nlr = 1\n"),
            "FILE:2: unknown section [optimiser], did you mean optimizer?");
  EXPECT_EQ(file_message("[train]\nbatch = 0\n"),
            "FILE:2: batch is 0, expected an integer from 1 to 1048576");
  EXPECT_EQ(file_message("[train]\nbatch = \"four\"\n"),
            "FILE:2: batch is \"four\", expected an integer from 1 to 1048576");
  EXPECT_EQ(file_message("[train]\nbatch = 4.0\n"),
            "FILE:2: batch is 4.0, expected an integer from 1 to 1048576");
  EXPECT_EQ(file_message("[train]\nbatch = [4]\n"),
            "FILE:2: batch is an array, a table or a date, expected an integer from 1 to 1048576");
  EXPECT_EQ(file_message("[data]\ntrain = 4\n"), "FILE:2: train is 4, expected a path in UTF-8");
  EXPECT_EQ(file_message("[model]\ntied = 1\n"), "FILE:2: tied is 1, expected true or false");
  EXPECT_EQ(file_message("[compute]\nattention = \"fast\"\n"),
            "FILE:2: attention is \"fast\", expected one of naive, flash, did you mean flash?");
  EXPECT_EQ(file_message("[optimizer]\nlr = nan\n").substr(0, 8), "FILE:2: ");
  EXPECT_EQ(file_message("[train]\nbatch = \n").substr(0, 7), "FILE:2:");
  EXPECT_EQ(file_message("[train]\nbatch = 1\nbatch = 2\n").substr(0, 7), "FILE:3:");
  EXPECT_EQ(args_message({"--config", "/no/such.toml"}),
            "config: cannot read /no/such.toml: No such file or directory");
}

TEST(ConfigErrors, AcrossKeys) {
  EXPECT_EQ(args_message({"--d_model", "100", "--heads", "8"}),
            "d_model is 100, expected a multiple of heads (8), or head_dim given");
  EXPECT_EQ(args_message({"--heads", "8", "--kv_heads", "3"}),
            "heads is 8, expected a multiple of kv_heads (3)");
  EXPECT_EQ(args_message({"--head_dim", "20"}),
            "head_dim is 20, which attention = flash does not support (multiples of 8 up to 256): "
            "choose such a head_dim, or attention = naive");
  EXPECT_EQ(args_message({"--head_dim", "20", "--attention", "naive"}), "no UsageError");
  EXPECT_EQ(args_message({"--rope_factor", "4"}),
            "rope_factor is 4, expected rope_scaling = linear or llama3 beside it");
  EXPECT_EQ(args_message({"--rope_factor", "4", "--rope_scaling", "linear"}), "no UsageError");
  EXPECT_EQ(args_message({"--rope_scaling", "llama3", "--rope_high_freq_factor", "1"}),
            "rope_high_freq_factor is 1, expected above rope_low_freq_factor (1)");
}

TEST(ConfigFile, AnIntegerIsARealNumberToo) {
  const TomlFile file("[optimizer]\nlr = 1\n");
  EXPECT_EQ(load_config(file.path()).optimizer.lr, 1.0);
}

// Kernels compute in single precision, where these numbers reach a limit of their key.
TEST(ConfigFile, RangesHoldInSinglePrecision) {
  EXPECT_NE(file_message("[optimizer]\nbeta2 = 0.99999999\n")
                .find("beta2 is 0.99999999 (1 in single precision), expected"),
            std::string::npos);
  for (const char* text : {"beta1 = 0.99999999", "eps = 1e-46", "clip = 1e-46", "clip = 1e39",
                           "momentum = 0.99999999", "lr = 1e-60"}) {
    EXPECT_NE(file_message(cat("[optimizer]\n", text, "\n")).find("in single precision"),
              std::string::npos)
        << text;
  }
  EXPECT_EQ(file_message("[optimizer]\nbeta2 = 0.9999999\neps = 1e-40\nclip = 0\n"),
            "no UsageError");
}

TEST(ConfigFile, ResolvedConfigurationReadsBackEqual) {
  Config config;
  apply_size(config.model, "1.5B");
  config.model.size = "1.5B";
  config.model.layers = 3;
  config.model.head_dim = 64;
  config.model.rope_theta = 1e6;
  config.model.rope_scaling = {RopeScalingKind::llama3, 32.0, 1.5, 4.5, 4096};
  config.model.qkv_bias = true;
  config.model.qk_norm = true;
  config.model.norm_eps = 1e-30;
  config.model.init = InitScheme::truncated;
  config.compute = ComputeSection{};
  config.compute.precision = Precision::bf16;
  config.compute.kernels = KernelKind::naive;
  config.compute.recompute = Recompute::blocks;
  config.compute.segment = 2;
  config.compute.device = DeviceChoice::cuda;
  config.compute.fp32_products = Fp32Products::fma;
  config.compute.deterministic = false;
  config.data.train = R"(C:\a "quoted" # path\u0041.txt)";
  config.data.validation_fraction = 0.1 + 0.2;  // needs all 17 digits
  config.data.format = DataFormat::llmc;
  config.train.seed = 1234567890123;
  config.train.on_nonfinite = OnNonfinite::skip;
  config.optimizer.lr = 6e-4;
  config.optimizer.clip = 0.0;
  config.optimizer.schedule = ScheduleKind::wsd;
  config.sample.prompt = std::string("\x01\x1f\x7f\t\r\n\\\"\0 \xc3\xa9 \xe2\x82\xac", 17);
  config.sample.past_context = PastContext::stop;
  const TomlFile file(config_toml(config));
  const Config read = load_config(file.path());
  EXPECT_EQ(read, config) << config_toml(read);
  EXPECT_EQ(config_toml(read), config_toml(config));
}

// config.toml of a run by an older version without the key.
TEST(ConfigFile, AKeyThatAnOlderRunLacksHasItsDefault) {
  Config config;
  config.compute.precision = Precision::fp32;
  config.compute.fp32_products = Fp32Products::fma;
  std::string text = config_toml(config);
  const size_t line = text.find("fp32_products");
  ASSERT_NE(line, std::string::npos);
  text.erase(line, text.find('\n', line) + 1 - line);
  const TomlFile file(text);
  config.compute.fp32_products = Fp32Products::split;
  EXPECT_EQ(load_config(file.path()), config);
}

TEST(ConfigFile, SaveWritesTheResolvedConfiguration) {
  const TomlFile file("");
  save_config(Config(), file.path());
  EXPECT_EQ(unsealed(read_text(file.path()), ""), config_toml(Config()));
  EXPECT_THROW(save_config(Config(), "/no/such/folder/config.toml"), Error);
}

// Every 13th bit flipped: the same configuration, or an error with the file's name.
TEST(ConfigFile, ADamagedSavedFileIsAnError) {
  const TomlFile file("");
  Config config;
  config.train.steps = 123;
  save_config(config, file.path());
  const std::string whole = read_text(file.path());
  int64_t refused = 0;
  for (size_t bit = 0; bit < 8 * whole.size(); bit += 13) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    const TomlFile copy(damaged);
    try {
      EXPECT_EQ(load_config(copy.path()), config) << "bit " << bit;
    } catch (const Error& error) {
      ++refused;
      EXPECT_NE(std::string(error.what()).find(copy.path()), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(refused, 500);
  // A hand removes the last line and edits.
  std::string edited = config_toml(config);
  edited.replace(edited.find("steps = 123"), 11, "steps = 124");
  EXPECT_EQ(load_config(TomlFile(edited).path()).train.steps, 124);
}

TEST(ConfigText, HelpFitsTheLineAndNamesEveryKey) {
  const std::string help = config_help({{"json", "print JSON", "false", true}}, all_sections());
  for (const ConfigKey& key : config_table()) {
    EXPECT_TRUE(std::regex_search(help, std::regex("  --" + key.name + "[ \\n]"))) << key.name;
  }
  EXPECT_EQ(help.find("  --json "), 0u);
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

TEST(ConfigText, DocumentationIsWhatTheProgramPrints) {
  EXPECT_EQ(read_text(kSource / "docs" / "configuration.md"), config_markdown())
      << "write it anew: quern help --markdown > docs/configuration.md";
}

TEST(ConfigText, ShippedConfigurationsLoad) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kSource / "configs")) {
    const std::string path = entry.path().string(), name = entry.path().filename().string();
    EXPECT_EQ(load_config(path).compute.device, DeviceChoice::automatic) << path;
    const std::string opening = "# quern train --config configs/" + name + " ";
    EXPECT_EQ(read_text(path).substr(0, opening.size()), opening);
    ++count;
  }
  EXPECT_GE(count, 6);
}

TEST(ConfigText, ShakespeareConfigurationIsTheReferencePreset) {
  const Config config = load_config((kSource / "configs" / "shakespeare-cpu.toml").string());
  EXPECT_EQ(config.model.layers, 4);
  EXPECT_EQ(config.model.d_model, 128);
  EXPECT_EQ(config.model.heads, 4);
  EXPECT_EQ(config.model.d_ff, 344);
  EXPECT_EQ(config.model.context, 64);
  EXPECT_EQ(config.train.batch, 12);
  EXPECT_EQ(config.train.steps, 2000);
  EXPECT_EQ(config.optimizer.beta2, 0.99);
}

TEST(DidYouMean, NearestWithinReach) {
  EXPECT_EQ(did_you_mean("layer", {"lr", "layers"}, "--"), ", did you mean --layers?");

  EXPECT_EQ(did_you_mean("ab", {"ac", "abcdefgh"}), ", did you mean ac?");
  EXPECT_EQ(did_you_mean("abc", {"xyz", "abcdefgh"}), ", did you mean abcdefgh?") << "a beginning";
  EXPECT_EQ(did_you_mean("ab", {"uvwxyz"}), "");
}

TEST(DidYouMean, KnowsTheWordsOfOtherPrograms) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"max_iters", "steps"},
      {"epochs", "steps"},
      {"learning_rate", "lr"},
      {"batch_size", "batch"},
      {"block_size", "ctx"},
      {"n_layer", "layers"},
      {"n_head", "heads"},
      {"n_embd", "d_model"},
      {"num_key_value_heads", "kv_heads"},
      {"gradient_accumulation_steps", "accumulate"},
      {"grad_clip", "clip"},
      {"warmup_iters", "warmup"},
      {"dtype", "precision"},
      {"max_new_tokens", "tokens"},
      {"eval_interval", "eval_every"},
      {"out_dir", "out"},
      {"init_from", "from"}};
  for (const auto& [word, key] : cases) {
    EXPECT_EQ(args_message({"--" + word, "1"}),
              cat("unknown flag --", word, ", did you mean --", key, "?"));
  }
  EXPECT_EQ(args_message({"--device", "gpu"}),
            "--device is gpu, expected one of auto, cpu, cuda, did you mean cuda?");
  EXPECT_EQ(file_message("[compute]\nprecision = \"float16\"\n"),
            "FILE:2: precision is \"float16\", expected one of fp32, tf32, bf16, fp8, did you mean "
            "bf16?");
  EXPECT_EQ(args_message({"-lr", "1"}), "unknown flag -lr, did you mean --lr?");
  EXPECT_EQ(did_you_mean("learning_rate", {"layers"}), "") << "lr is no candidate";
  EXPECT_EQ(file_message("[train]\nlearning_rate = 1\n"),
            "FILE:2: unknown key learning_rate in [train], did you mean lr in [optimizer]?");
  EXPECT_EQ(file_message("max_iters = 1\n"),
            "FILE:1: unknown key max_iters at the top of the file, did you mean steps in [train]?");
}

}  // namespace
}  // namespace quern
