// The program's help, its suggestions, and the output generated from the table of commands.
#include <gtest/gtest.h>

#include <regex>

#include "config/config_table.h"
#include "support/program.h"

namespace quern {
namespace {

using namespace testing_support;

// The first words of the lines that list commands below "Usage: ...".
std::vector<std::string> listed(const std::string& help) {
  std::vector<std::string> names;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("  ") && std::islower(line[2])) {
      names.push_back(line.substr(2, line.find(' ', 2) - 2));
    }
  }
  return names;
}

// "train", "data prepare", ...: every command that the program lists.
std::vector<std::vector<std::string>> all_commands() {
  std::vector<std::vector<std::string>> commands;
  for (const std::string& name : listed(run({"help"}).out)) {
    const std::vector<std::string> below = listed(run({"help", name}).out);
    if (below.empty()) commands.push_back({name});
    for (const std::string& one : below) commands.push_back({name, one});
  }
  return commands;
}

TEST(Help, ListsTheCommands) {
  for (const auto& args : std::vector<std::vector<std::string>>{{}, {"help"}, {"--help"}, {"-h"}}) {
    const Outcome outcome = run(args);
    EXPECT_EQ(outcome.code, 0);
    for (const char* command : {"train", "generate", "eval", "import", "export", "bench", "tune",
                                "verify", "info", "help"}) {
      EXPECT_NE(outcome.out.find(cat("\n  ", command, " ")), std::string::npos) << command;
    }
  }
}

TEST(Help, OfEveryCommandFitsEightyColumns) {
  const auto commands = all_commands();
  EXPECT_GT(commands.size(), 25u);
  for (std::vector<std::string> command : commands) {
    std::string name = "quern";
    for (const std::string& word : command) name += " " + word;
    std::vector<std::string> indirect = command;
    indirect.insert(indirect.begin(), "help");
    command.emplace_back("--help");
    const Outcome outcome = run(command);
    EXPECT_EQ(outcome.code, 0) << name;
    EXPECT_TRUE(outcome.out.starts_with("Usage: " + name)) << outcome.out;
    EXPECT_EQ(outcome.out, run(indirect).out);
    command.back() = "--help-all";
    std::istringstream lines(outcome.out + run(command).out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  }
}

// A command's own flags come first; keys that do not apply are only in --help-all.
TEST(Help, ListsTheKeysThatApply) {
  const std::string generate = run({"help", "generate"}).out;
  const size_t own = generate.find("\n  --prompts "), config = generate.find("\n  --config ");
  EXPECT_LT(own, config);
  EXPECT_LT(config, generate.find("\n  --temperature "));
  EXPECT_NE(generate.find("`quern generate --help-all`"), std::string::npos);
  const std::string all = run({"generate", "run", "--help-all"}).out;
  EXPECT_EQ(all, run({"help", "generate", "--all"}).out);
  for (const char* key : {"fp32_products", "d_model", "tied", "graph"}) {
    const std::string line = cat("\n  --", key, " ");
    EXPECT_EQ(generate.find(line), std::string::npos) << key;
    EXPECT_NE(all.find(line), std::string::npos) << key;
  }
  EXPECT_EQ(all.find("\n  --lr "), std::string::npos) << "generate reads it not";
  const std::string train = run({"train", "--help-all"}).out;
  for (const ConfigKey& key : config_table()) {
    EXPECT_NE(train.find(cat("\n  --", key.name)), std::string::npos) << key.name;
  }
  EXPECT_EQ(run({"help", "bench", "kernels"}).out.find("--help-all"), std::string::npos);
  const std::string profile = run({"help", "profile"}).out;  // its own --steps hides the key
  EXPECT_EQ(profile.find("\n  --steps "), profile.rfind("\n  --steps "));
  EXPECT_EQ(run({"help", "watch"}).out.find("--config"), std::string::npos);
}

TEST(Help, DefaultsAreTheCommandsOwn) {
  const auto words_of = [](std::vector<std::string> command) {
    command.insert(command.begin(), "help");
    return std::regex_replace(run(command).out, std::regex("\\s+"), " ");
  };
  for (const auto& [command, batch] : {std::pair{"step", "4"}, {"decode", "1"}}) {
    const std::string words = words_of({"bench", command});
    for (const std::string& part :
         {std::string("; default small)"), std::string("; default 512)"),
          cat("sequences in a micro-batch (an integer from 1 to 1048576; default ", batch, ")")}) {
      EXPECT_NE(words.find(part), std::string::npos) << command << ": " << part << "\n" << words;
    }
  }
  EXPECT_NE(words_of({"memory"}).find("; default small)"), std::string::npos);
  EXPECT_NE(words_of({"profile"}).find("; default small)"), std::string::npos);
  EXPECT_NE(words_of({"train"}).find("; default toy)"), std::string::npos);
}

TEST(Help, DocumentationIsWhatTheProgramPrints) {
  const Outcome outcome = run({"help", "--markdown"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, read_file(source_folder() / "docs" / "configuration.md"));
}

TEST(Help, Version) {
  for (const char* word : {"--version", "-V", "-v", "version"}) {
    const Outcome outcome = run({word});
    EXPECT_EQ(outcome.code, 0);
    EXPECT_TRUE(outcome.out.starts_with("quern ")) << outcome.out;
  }
}

TEST(Help, SuggestsTheNearestCommand) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"trian", "train"},          {"tran", "train"},      {"gen", "generate"},
      {"genrate", "generate"},     {"sample", "generate"}, {"prepare", "data prepare"},
      {"inspect", "data inspect"}, {"test", "verify"},     {"evaluate", "eval"},
      {"benchmark", "bench"},      {"step", "bench step"}, {"encode", "tokenizer encode"},
      {"convert", "import"},       {"plot", "report"},     {"versoin", "version"},
      {"resume", "train"},         {"prof", "profile"},    {"monitor", "watch"}};
  for (const auto& [word, name] : cases) {
    expect_usage_error({word}, cat("unknown command '", word, "', did you mean `quern ", name));
  }
  EXPECT_EQ(run({"new"}).err, "quern: unknown command 'new'\n`quern help` lists the commands\n");
  expect_usage_error({"help", "benhc"}, "did you mean `quern bench`?");
  expect_usage_error({"data", "prepaer"}, "expected one of prepare, inspect, did you mean");
  expect_usage_error({"--verison"}, "unknown flag --verison, did you mean --version?");
  expect_usage_error({"--hlep"}, "did you mean --help?");
  expect_usage_error({"help", "train", "eval"}, "found 'eval', expected one command");
  expect_usage_error({"chat", "Qwen/Qwen3-0.6B"},
                     "did you mean `quern generate`?\nQwen/Qwen3-0.6B: if it is a model of the");
  expect_usage_error({"train", "--eval"}, "unknown flag --eval, did you mean --eval_every?");
  expect_usage_error({"train", "--max-iters", "9"}, "flag --max_iters, did you mean --steps?");
  expect_usage_error({"generate", "run", "--max_new_tokens", "9"}, "did you mean --tokens?");
  expect_usage_error({"report", "run", "-o", "x"}, "unknown flag -o, did you mean --out?");
  expect_usage_error({"train", "-x", "9"}, "unknown flag -x, expected --key value");
}

// The completions of the last word of a command line.
std::vector<std::string> completed(std::vector<std::string> words) {
  words.insert(words.begin(), {"completion", "words", "--"});
  const Outcome outcome = run(words);
  std::vector<std::string> found;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) {
    found.push_back(line.substr(0, line.find('\t')));
  }
  return found;
}

TEST(Completion, OfferWhatMayFollow) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(completed({"ge"}), Words{"generate"});
  EXPECT_EQ(completed({"help", "da"}), Words{"data"});
  EXPECT_EQ(completed({"data", ""}), (Words{"prepare", "inspect"}));
  EXPECT_EQ(completed({"generate", "run", "--top"}), (Words{"--top_k", "--top_p"}));
  EXPECT_EQ(completed({"generate", "run", "--top-"}), (Words{"--top-k", "--top-p"}));
  EXPECT_EQ(completed({"train", "--precision", ""}), (Words{"fp32", "tf32", "bf16", "fp8"}));
  EXPECT_EQ(completed({"train", "--precision", "=", "t"}), Words{"tf32"});  // as bash splits it
  EXPECT_EQ(completed({"train", "--precision="}),
            (Words{"--precision=fp32", "--precision=tf32", "--precision=bf16", "--precision=fp8"}));
  EXPECT_EQ(completed({"profile", "--target", "tr"}), Words{"train"});
  EXPECT_EQ(completed({"train", "--tied", ""}), (Words{"true", "false"}));
  EXPECT_EQ(completed({"train", "--train", ""}), Words{});  // a file
  EXPECT_EQ(completed({"train", "--lr", ""}), Words{});
  EXPECT_EQ(completed({}).size(), completed({""}).size());
  EXPECT_EQ(completed({"train", "--min_l"}), Words{"--min_lr"});  // not listed by --help
  expect_usage_error({"completion", "tcsh"}, "found tcsh, expected bash, zsh or fish");
}

TEST(ManPage, NamesEveryCommandAndKey) {
  const std::string page = run({"help", "--man"}).out;
  EXPECT_TRUE(page.starts_with(".TH QUERN 1 ")) << page.substr(0, 80);
  EXPECT_NE(page.find("\nquern help [COMMAND"), std::string::npos) << page.substr(0, 400);
  for (const std::vector<std::string>& command : all_commands()) {
    std::string name = ".SS quern";
    for (const std::string& word : command) name += " " + word;
    EXPECT_NE(page.find(name + "\n"), std::string::npos) << name;
  }
  for (const ConfigKey& key : config_table()) {
    EXPECT_NE(page.find("\n\\fB\\-\\-" + key.name + "\\fR\n"), std::string::npos) << key.name;
  }
}

}  // namespace
}  // namespace quern
