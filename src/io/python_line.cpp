#include "io/python_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/error.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

// A Python string literal that is safe inside single quotes of the shell.
std::string python_string(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\'' || byte < 0x20) {
      quoted += fmt::format("\\x{:02x}", byte);
    } else {
      if (c == '"' || c == '\\') quoted += '\\';
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string shell_line(const std::string& python) {
  return cat("`python3 -c '", python, "'`");
}

bool is_hub_word(std::string_view word) {
  const bool valid = std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '.' || c == '-' || c == '_';
  });
  return valid && !word.empty() && word[0] != '.';
}

// The Hub name ("org/name", "name") in a path; empty when the path cannot be one.
std::string hub_name(std::string path) {
  bool named = false;
  for (const char* prefix : {"hf://", "https://huggingface.co/", "datasets/"}) {
    if (!path.starts_with(prefix) || (!named && prefix == std::string_view("datasets/"))) continue;
    path.erase(0, std::string_view(prefix).size());
    named = true;
  }
  const size_t slash = std::min(path.find('/'), path.size());
  const std::string_view first = std::string_view(path).substr(0, slash);
  std::string_view second = std::string_view(path).substr(std::min(slash + 1, path.size()));
  if (named) second = second.substr(0, second.find('/'));
  if (!is_hub_word(first) || (slash < path.size() && !is_hub_word(second))) return "";
  if (named) return second.empty() ? std::string(first) : cat(first, "/", second);
  // A name in an existing folder, or with a file extension ("books/a.txt"), is a wrong path.
  const std::string extension = fs::path(path).extension().string();
  const bool is_file =
      !extension.empty() &&
      std::none_of(extension.begin(), extension.end(), [](char c) { return c >= '0' && c <= '9'; });
  std::error_code ignored;
  return is_file || fs::exists(first, ignored) ? "" : path;
}

}  // namespace

std::string why_not_columns(const fs::path& path, std::string_view head) {
  struct Columns {
    std::string_view head, what, before, after;  // `before` and `after` the file's name in Python
  };
  constexpr Columns kColumns[] = {
      {"PAR1", "a Parquet file", "import pandas; pandas.read_parquet(", ")"},
      {"ARROW1", "an Arrow file", "import pandas; pandas.read_feather(", ")"},
      {"\xFF\xFF\xFF\xFF", "an Arrow stream", "import pyarrow.ipc; pyarrow.ipc.open_stream(open(",
       ", \"rb\")).read_pandas()"}};
  const auto* found = std::ranges::find_if(
      kColumns, [&](const Columns& columns) { return head.starts_with(columns.head); });
  if (found == std::end(kColumns)) return "";
  const std::string out = python_string(fs::path(path).replace_extension(".jsonl").string());
  const std::string python = cat(found->before, python_string(path.string()), found->after,
                                 ".to_json(", out, ", orient=\"records\", lines=True)");
  return cat("is ", found->what, "; ", shell_line(python), " writes it as JSON lines");
}

std::string hub_hint(const std::string& path, HubKind kind) {
  std::error_code ignored;
  if (fs::exists(path, ignored)) return "";
  if (fs::is_symlink(path, ignored)) {
    return cat("; it is a link to ", fs::read_symlink(path, ignored).string());
  }
  const std::string name = hub_name(path);
  if (name.empty()) return "";
  const std::string folder = fs::path(name).filename().string();
  const std::string python =
      kind == HubKind::model
          ? cat("from huggingface_hub import snapshot_download; snapshot_download(",
                python_string(name), ", local_dir=", python_string(folder), ")")
          : cat("from datasets import load_dataset; load_dataset(", python_string(name),
                ", split=\"train\").to_json(", python_string(folder + ".jsonl"), ")");
  return cat("; if it is a ", kind == HubKind::model ? "model" : "dataset",
             " of the Hugging Face Hub, ", shell_line(python), " downloads it");
}

std::string lfs_hint(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const bool pointer = text.starts_with("version https://git-lfs.github.com/spec/");
  return pointer ? "; it is a pointer of Git LFS: `git lfs pull` gets the file" : "";
}

}  // namespace quern
