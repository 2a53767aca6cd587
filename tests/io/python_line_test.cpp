#include "io/python_line.h"

#include <gtest/gtest.h>

#include "support/program.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;

// Runs the command between the message's backquotes. Stub modules replace pandas, pyarrow, datasets
// and huggingface_hub and print their calls.
std::string run_line(const std::string& message) {
  const size_t begin = message.find('`') + 1;
  const std::string command = message.substr(begin, message.rfind('`') - begin);
  const TemporaryFolder modules;
  const std::string fake =
      "class Any:\n"
      "  def __init__(self, name): self.name = name\n"
      "  def __getattr__(self, name): return Any(self.name + '.' + name)\n"
      "  def __call__(self, *a, **k):\n"
      "    a = [x.name if hasattr(x, 'name') else x for x in a]\n"
      "    print(self.name.split('.')[-1], *a, *sorted(k.items())); return self\n"
      "def __getattr__(name): return Any(name)\n";
  for (const char* name : {"pandas.py", "pyarrow/ipc.py", "datasets.py", "huggingface_hub.py"}) {
    write_file(modules / name, fake);
  }
  const Outcome outcome =
      run_shell(cat("cd '", modules.path().string(), "'; PYTHONPATH=. ", command));
  EXPECT_EQ(outcome.code, 0) << command << "\n" << outcome.err;
  return outcome.out;
}

class PythonLine : public testing::Test {
 protected:
  void SetUp() override {
    if (run_shell("command -v python3").code != 0) GTEST_SKIP() << "no python3";
  }
};

TEST_F(PythonLine, WritesParquetAndArrowAsJsonLines) {
  EXPECT_EQ(run_line(why_not_columns("a/b.parquet", "PAR1...")),
            "read_parquet a/b.parquet\n"
            "to_json a/b.jsonl ('lines', True) ('orient', 'records')\n");
  EXPECT_EQ(run_line(why_not_columns("b.arrow", "ARROW1..")),
            "read_feather b.arrow\nto_json b.jsonl ('lines', True) ('orient', 'records')\n");
  const TemporaryFolder folder;
  const std::string stream = write_file(folder / "b.arrow", "\xFF\xFF\xFF\xFF");
  EXPECT_TRUE(run_line(why_not_columns(stream, "\xFF\xFF\xFF\xFF"))
                  .starts_with(cat("open_stream ", stream, "\nread_pandas\nto_json ")));
  EXPECT_EQ(why_not_columns("b.arrow", "text"), "");
}

TEST_F(PythonLine, QuotesAnyPath) {
  EXPECT_TRUE(run_line(why_not_columns("it's $HOME \"\\n\" `x`.parquet", "PAR1"))
                  .starts_with("read_parquet it's $HOME \"\\n\" `x`.parquet\n"));
}

TEST(PythonString, EscapesOnlyQuotesBackslashesAndControlCharacters) {
  const std::string line = why_not_columns("it's \x01 \x1F\x7F \"~\\.parquet", "PAR1");
  EXPECT_NE(line.find("(\"it\\x27s \\x01 \\x1f\x7F \\\"~\\\\.parquet\")"), std::string::npos)
      << line;
}

TEST_F(PythonLine, DownloadsFromTheHub) {
  EXPECT_EQ(run_line(hub_hint("org/tiny-1.5", HubKind::dataset)),
            "load_dataset org/tiny-1.5 ('split', 'train')\nto_json tiny-1.5.jsonl\n");
  EXPECT_EQ(run_line(hub_hint("hf://org/model", HubKind::model)),
            "snapshot_download org/model ('local_dir', 'model')\n");
}

TEST(HubHint, OnlyForNamesOfTheHub) {
  const auto hint = [](const std::string& path) { return hub_hint(path, HubKind::dataset); };
  for (const char* name : {"gpt2", "wikitext", "tiny-1.5", "opt_2.7b"}) {
    EXPECT_NE(hint(name).find(cat("\"", name, "\"")), std::string::npos) << name;
  }
  for (const char* name : {"org/name", "hf://org/name", "hf://datasets/org/name/data/a.parquet",
                           "https://huggingface.co/datasets/org/name/tree/main"}) {
    EXPECT_NE(hint(name).find("\"org/name\""), std::string::npos) << name;
  }
  EXPECT_NE(hint("hf://gpt2").find("\"gpt2\""), std::string::npos);
  const TemporaryFolder folder;
  write_file(folder / "a", "text");
  for (const std::string& path :
       {std::string("name.txt"), std::string("name/"), std::string("org/name/more"),
        std::string("/org/name"), std::string("./name"), std::string(".name"),
        std::string("org/.name"), std::string("org/name.txt"), std::string("org/a b"),
        std::string(), (folder / "a").string()}) {
    EXPECT_EQ(hint(path), "") << path;
  }
}

TEST(PythonLineText, ControlCharactersAreEscaped) {
  EXPECT_NE(why_not_columns("a\n.parquet", "PAR1").find("\"a\\x0a.parquet\""), std::string::npos);
}

TEST(HubHint, NotForAPathInAFolderThatIsThere) {
  const TemporaryFolder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  fs::create_directory("runs");
  EXPECT_EQ(hub_hint("runs/a", HubKind::model), "");
  EXPECT_NE(hub_hint("datasets", HubKind::dataset), "");
  EXPECT_EQ(hub_hint("datasets/org/name", HubKind::dataset), "");
  fs::current_path(before);
}

}  // namespace
}  // namespace quern
