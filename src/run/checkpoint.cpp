#include "run/checkpoint.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/first_line.h"
#include "base/parse_number.h"
#include "dist/host_name.h"
#include "io/atomic_file.h"
#include "io/checksum.h"
#include "io/folder.h"
#include "io/json_file.h"
#include "io/small_file.h"

namespace quern {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

constexpr int64_t kOneFile = 1, kSeveralFiles = 2;  // format versions
constexpr const char* kManifest = "manifest.json";
constexpr const char* kWeights = "model";  // stems of the tensors' files
constexpr const char* kMoments = "optimizer";
constexpr const char* kAlgorithms = "gemm_algorithms.txt";
constexpr const char* kInProgress = "in_progress";  // until all ranks have written or one fails
constexpr std::string_view kPrefix = "step_";
constexpr std::string_view kTemporary = ".tmp";
constexpr std::string_view kLater = ".later";

std::string folder_name(int64_t step) {
  QUERN_CHECK(step >= 0, "checkpoint: step is ", step, ", expected 0 or more");
  return fmt::format("{}{:08}", kPrefix, step);
}

// The step in a folder's name; empty unless folder_name gives that name.
std::optional<int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return {};
  const std::optional<int64_t> step = parse_number<int64_t>(name.substr(kPrefix.size()));
  return step >= 0 && folder_name(*step) == name ? step : std::nullopt;
}

std::vector<fs::directory_entry> entries_if_there(const fs::path& folder) {
  if (!is_there(folder)) return {};
  return entries_of(folder);
}

// Renames it first: a partly removed folder must not look like a checkpoint. Returns a sentence
// when its files stay.
std::optional<std::string> remove_checkpoint(const fs::path& path) {
  try {
    const fs::path doomed = fs::path(path) += kTemporary;
    remove_tree(doomed);
    replace_directory(path, doomed);
    remove_tree(doomed);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

void remove_half_written(const fs::path& folder) {
  for (const fs::path& path : entries_if_there(folder)) {
    if (path.extension() != kTemporary || !step_of(path.stem().string())) continue;
    std::error_code ignored;  // only its memory is lost
    remove_tree(path, ignored);
  }
}

// The folder in which a checkpoint is written; removed unless it was renamed.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(fs::path path) : path_(std::move(path)) {}
  ~TemporaryFolder() {
    std::error_code ignored;  // during an exception, or nothing to remove
    remove_tree(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

 private:
  fs::path path_;
};

Json to_json(const FileDigest& digest) {
  return {{"bytes", digest.bytes}, {"xxh3", hex(digest.xxh3)}};
}

// The manifest's own checksum: that of the compact text of all other fields.
std::string manifest_checksum(const Json& manifest) {
  return checksum_of(manifest.dump());
}

Json parse_state(const std::string& text) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    fail(cat("checkpoint: state is not valid JSON: ", json_reason(error.what())));
  }
}

Json read_manifest(const fs::path& path) {
  QUERN_CHECK(is_there(path), path.parent_path().string(), ": is not a checkpoint (it has no ",
              kManifest, ")");
  Json manifest = read_json_object(path);
  const nlohmann::json sorted = manifest;
  const JsonPlace members{sorted, path.string() + ": "};
  const int64_t version = members.at("format").count();
  const std::string& expected = members.at("xxh3").text();
  QUERN_CHECK(version == kOneFile || version == kSeveralFiles, path.string(),
              ": format version is ", version, ", expected ", kOneFile, " or ", kSeveralFiles);
  manifest.erase("xxh3");
  const std::string found = manifest_checksum(manifest);
  QUERN_CHECK(found == expected, path.string(), ": checksum of its content is ", found,
              ", expected ", expected);
  return manifest;
}

// Opens a file and checks it against its manifest entry.
MappedFile verified(const fs::path& path, const JsonPlace& expected) {
  MappedFile raw = MappedFile::open(path);
  const int64_t bytes = expected.at("bytes").count();
  const auto size = static_cast<int64_t>(raw.bytes().size());
  QUERN_CHECK(size == bytes, path.string(), ": has ", size, " bytes, expected ", bytes);
  const std::string checksum = hex(digest_of(raw.bytes()).xxh3);
  const std::string& xxh3 = expected.at("xxh3").text();
  QUERN_CHECK(checksum == xxh3, path.string(), ": checksum is ", checksum, ", expected ", xxh3);
  return raw;
}

// The tensors in one file or several, each of which must be in the manifest. files: its entries.
SafetensorsShards open_verified(const fs::path& folder, const char* stem, const JsonPlace& files) {
  const auto check = [&](const std::string& name) {
    verified(folder / name, files.at(name.c_str()));
  };
  const std::string one = safetensors_name(stem), index = safetensors_index_name(stem);
  if (!files.has(index.c_str())) {
    check(one);
  } else {
    check(index);
    std::set<std::string> names;
    for (const auto& [tensor, name] : read_safetensors_index(folder / index)) names.insert(name);
    for (const std::string& name : names) check(name);
    QUERN_CHECK(!is_there(folder / one), folder.string(), ": has ", one, " as well as ", index,
                ", expected one of them");
  }
  return SafetensorsShards::open(folder, stem);
}

std::string read_verified(const fs::path& path, const JsonPlace& expected) {
  return std::string(verified(path, expected).text());
}

void write_manifest(const fs::path& folder, Json manifest) {
  manifest["xxh3"] = manifest_checksum(manifest);
  write_file_atomically(folder / kManifest, manifest.dump(1) + "\n");
}

// The text of folder/best or folder/kept; empty if there is no such file.
std::optional<std::string> read_mark(const fs::path& path) {
  std::optional<std::string> text = read_if_there(path);
  if (text) text = unsealed(*text, path);
  return text;
}

// The step that a line of folder/kept names.
std::optional<int64_t> kept_step(const std::string& line) {
  return step_of(line.substr(0, line.find(' ')));
}

std::set<int64_t> kept_steps(const fs::path& folder) {
  std::set<int64_t> steps;
  std::istringstream file(read_mark(folder / "kept").value_or(""));
  for (std::string line; std::getline(file, line);) {
    if (const auto step = kept_step(line)) steps.insert(*step);
  }
  return steps;
}

std::optional<int64_t> best_step(const fs::path& folder) {
  const std::optional<std::string> text = read_mark(folder / "best");
  if (!text) return {};
  const std::string name = first_line(*text);
  const std::optional<int64_t> step = step_of(name);
  QUERN_CHECK(step, (folder / "best").string(), ": holds '", name, "', expected a name like ",
              folder_name(0));
  return step;
}

// The checkpoint that folder/`mark` names.
fs::path marked(const fs::path& folder, int64_t step, const char* mark) {
  fs::path path = folder / folder_name(step);
  QUERN_CHECK(is_there(path / kManifest), path.string(), ": is recorded as the ", mark,
              " checkpoint (", (folder / mark).string(), "), but is not there");
  return path;
}

}  // namespace

void restore_replaced_checkpoints(const fs::path& folder) {
  for (const fs::path& path : entries_if_there(folder)) {
    if (path.extension() == kReplaced && step_of(path.stem().string())) restore_replaced(path);
  }
}

namespace {

// Ends the writing of a rank when another one has failed.
struct AnotherRankFailed {};

// A checkpoint that ranks are writing. kInProgress has its name: the ranks of a run that was killed
// on other machines may still be writing when this one begins.
struct Writing {
  fs::path folder;
  std::string name;

  // Opens the file: NFS may answer from memory whether it is there. One that cannot be read is
  // gone.
  bool goes_on() const noexcept {
    try {
      return read_if_there(folder / kInProgress) == name;
    } catch (const std::exception&) {
      return false;
    }
  }
};

// This rank's file. Adds its manifest entry to `files`.
void write_tensors(const Writing& writing, const char* stem, const std::vector<TensorView>& tensors,
                   const FileNumber& file, Json& files) {
  if (!file.number) return;
  const auto proceed = [&] {
    if (!writing.goes_on()) throw AnotherRankFailed();
  };
  proceed();  // before the file is made
  const std::string name = safetensors_shard_name(stem, *file.number, file.count);
  files[name] =
      to_json(write_safetensors(writing.folder / name, tensors, {{"format", "pt"}}, proceed));
}

// The files of this rank, as JSON; nothing if another rank failed meanwhile. With many gigabytes a
// rank, the others must not write theirs to the end before they hear of a full disk: a rank that
// fails removes kInProgress.
std::string write_rank_files(const Writing& writing, const CheckpointContents& contents) {
  const fs::path& folder = writing.folder;
  Json files = Json::object();
  try {
    write_tensors(writing, kWeights, contents.weights, contents.weights_file, files);
    write_tensors(writing, kMoments, contents.moments, contents.moments_file, files);
  } catch (const AnotherRankFailed&) {
    return "";
  } catch (...) {
    if (writing.goes_on()) {
      std::error_code ignored;
      remove_tree(folder / kInProgress, ignored);
    }
    throw;
  }
  return files.dump();
}

// The index of the ranks' files, read from their headers.
void write_index(const fs::path& folder, const char* stem, size_t count, Json& files) {
  if (count == 1) return;
  std::vector<std::vector<TensorEntry>> entries(count);
  for (size_t i = 0; i < count; ++i) {
    const auto file = SafetensorsFile::open(folder / safetensors_shard_name(stem, i, count));
    for (const SafetensorsFile::Entry& entry : file.entries()) {
      entries[i].push_back({entry.name, file.tensor(entry.name).dtype, entry.shape});
    }
  }
  files[safetensors_index_name(stem)] = to_json(write_safetensors_index(folder, stem, entries));
}

}  // namespace

fs::path write_checkpoint(const fs::path& folder, const CheckpointContents& contents,
                          const RankTeam& team) {
  fs::path path = checkpoint_path(folder, contents.step);
  const bool one_file = contents.weights_file.count == 1 && contents.moments_file.count == 1;
  Json manifest{{"format", one_file ? kOneFile : kSeveralFiles}, {"step", contents.step}};
  const fs::path temporary = fs::path(path) += kTemporary;
  std::optional<TemporaryFolder> removed_after_errors;

  const std::string name = team.of_leader(
      [&] {
        manifest["state"] = parse_state(contents.state_json);
        create_folder(folder);
        remove_half_written(folder);
        restore_replaced_checkpoints(folder);
        removed_after_errors.emplace(temporary);
        remove_tree(temporary);
        create_folder(temporary);
        const auto now = std::chrono::system_clock::now().time_since_epoch().count();
        const std::string writer = cat(host_name(), " process ", ::getpid(), " at ", now);
        write_file_atomically(temporary / kInProgress, writer);
        return writer;
      },
      "the folder of a checkpoint", WorkLength::long_lasting);  // it may remove a large one
  const Writing writing{temporary, name};
  team.on_each(
      [&] {
        QUERN_CHECK(writing.goes_on(), temporary.string(),
                    ": is not the folder that the first rank has made; "
                    "ranks on several machines need a run folder that all of them share");
        return std::string();
      },
      "the folder of a checkpoint");
  const std::vector<std::string> written =
      team.on_each([&] { return write_rank_files(writing, contents); }, "the files of a checkpoint",
                   WorkLength::long_lasting);
  team.on_leader(
      [&] {
        Json& files = manifest["files"] = Json::object();
        for (const std::string& of_rank : written) {
          QUERN_CHECK(!of_rank.empty(), (temporary / kInProgress).string(),
                      ": was removed while ranks wrote to its folder");
          files.update(Json::parse(of_rank));
        }
        remove_tree(temporary / kInProgress);
        write_index(temporary, kWeights, contents.weights_file.count, files);
        write_index(temporary, kMoments, contents.moments_file.count, files);
        if (const std::string& text = contents.gemm_algorithms; !text.empty()) {
          write_file_atomically(temporary / kAlgorithms, text);
          files[kAlgorithms] = to_json(digest_of(std::as_bytes(std::span(text))));
        }
        write_manifest(temporary, manifest);
        replace_directory(temporary, path);
      },
      "a checkpoint", WorkLength::long_lasting);
  return path;
}

void rewrite_checkpoint_state(const fs::path& path, const std::string& state_json) {
  Json manifest = read_manifest(path / kManifest);
  manifest["state"] = parse_state(state_json);
  write_manifest(path, manifest);
}

Checkpoint open_checkpoint(const fs::path& path) {
  const Json manifest = read_manifest(path / kManifest);
  const nlohmann::json sorted = manifest;
  const JsonPlace members{sorted, (path / kManifest).string() + ": "};
  const JsonPlace files = members.at("files");
  members.at("state");  // throws when there is none
  return {path,
          members.at("step").count(),
          open_verified(path, kWeights, files),
          open_verified(path, kMoments, files),
          manifest["state"].dump(),
          files.has(kAlgorithms) ? read_verified(path / kAlgorithms, files.at(kAlgorithms))
                                 : std::string()};
}

std::optional<std::string> checkpoint_damage(const fs::path& path) {
  for (const fs::path& file : entries_if_there(path)) {
    read_if_there(file, 1);  // throws when it is there and unreadable
  }
  try {
    open_checkpoint(path);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

std::string read_checkpoint_state(const fs::path& path) {
  const Json manifest = read_manifest(path / kManifest);
  const auto state = manifest.find("state");
  QUERN_CHECK(state != manifest.end(), (path / kManifest).string(),
              ": is not a checkpoint's manifest: it has no state");
  return state->dump();
}

std::vector<int64_t> checkpoint_steps(const fs::path& folder) {
  std::vector<int64_t> steps;
  for (const fs::path& path : entries_if_there(folder)) {
    const std::optional<int64_t> step = step_of(path.filename().string());
    if (step && is_there(path / kManifest)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

fs::path checkpoint_path(const fs::path& folder, int64_t step) {
  return folder / folder_name(step);
}

std::optional<fs::path> latest_checkpoint(const fs::path& folder) {
  const std::vector<int64_t> steps = checkpoint_steps(folder);
  if (steps.empty()) return {};
  return checkpoint_path(folder, steps.back());
}

void mark_best(const fs::path& folder, int64_t step) {
  write_file_atomically(folder / "best", sealed(folder_name(step) + "\n"));
}

std::optional<fs::path> best_checkpoint(const fs::path& folder) {
  const std::optional<int64_t> step = best_step(folder);
  if (!step) return {};
  return marked(folder, *step, "best");
}

void mark_kept(const fs::path& folder, int64_t step, const std::string& reason) {
  if (kept_steps(folder).contains(step)) return;
  std::string text = read_mark(folder / "kept").value_or("");
  if (!text.empty() && text.back() != '\n') text += '\n';
  write_file_atomically(folder / "kept", sealed(cat(text, folder_name(step), ' ', reason, '\n')));
}

std::vector<fs::path> kept_checkpoints(const fs::path& folder) {
  std::vector<fs::path> paths;
  for (const int64_t step : kept_steps(folder)) paths.push_back(marked(folder, step, "kept"));
  return paths;
}

std::vector<fs::path> unfinished_checkpoints(const fs::path& folder) {
  std::vector<fs::path> paths;
  for (const fs::path& path : entries_if_there(folder)) {
    if (path.has_extension() && step_of(path.stem().string())) paths.push_back(path);
  }
  return paths;
}

namespace {

// Rewrites folder/kept without the checkpoints after `step`.
void forget_kept_after(const fs::path& folder, int64_t step) {
  std::istringstream file(read_mark(folder / "kept").value_or(""));
  std::string rest;
  bool changes = false;
  for (std::string line; std::getline(file, line);) {
    const bool later = kept_step(line).value_or(step) > step;
    changes = changes || later;
    if (!later) rest += line + '\n';
  }
  if (!changes) return;
  if (rest.empty()) return remove_tree(folder / "kept");
  write_file_atomically(folder / "kept", sealed(rest));
}

}  // namespace

int64_t set_aside_checkpoints_after(const fs::path& folder, int64_t step) {
  if (best_step(folder).value_or(step) > step) remove_tree(folder / "best");
  forget_kept_after(folder, step);
  const std::vector<int64_t> steps = checkpoint_steps(folder);
  int64_t count = 0;
  for (auto later = steps.rbegin(); later != steps.rend() && *later > step; ++later, ++count) {
    const fs::path path = checkpoint_path(folder, *later);  // a kill leaves older ones in place
    replace_directory(path, fs::path(path) += kLater);
  }
  return count;
}

std::vector<std::string> remove_later_checkpoints(const fs::path& folder) {
  std::vector<std::string> warnings;
  for (const fs::path& path : entries_if_there(folder)) {
    if (path.extension() != kLater || !step_of(path.stem().string())) continue;
    std::error_code error;
    remove_tree(path, error);
    if (error) warnings.push_back(cat(path.string(), ": cannot be removed: ", error.message()));
  }
  return warnings;
}

namespace {

// Whether the files are there with the sizes that the manifest gives. open_checkpoint() reads them.
bool looks_whole(const fs::path& path) {
  try {
    const Json manifest = read_manifest(path / kManifest);
    for (const auto& [name, digest] : manifest.at("files").items()) {
      if (fs::file_size(path / name) != digest.at("bytes").get<uint64_t>()) return false;
    }
    return true;
  } catch (const std::exception&) {  // of the file, of JSON or of the file system
    return false;
  }
}

}  // namespace

std::vector<std::string> rotate_checkpoints(const fs::path& folder, int64_t keep_last) {
  QUERN_CHECK(keep_last >= 1, "checkpoints: keep is ", keep_last, ", expected at least 1");
  std::set<int64_t> keep = kept_steps(folder);
  if (const std::optional<int64_t> best = best_step(folder)) keep.insert(*best);
  const std::vector<int64_t> steps = checkpoint_steps(folder);
  size_t first_kept = steps.size();
  for (int64_t whole = 0; whole < keep_last && first_kept > 0;) {
    if (looks_whole(checkpoint_path(folder, steps[--first_kept]))) ++whole;
  }
  std::vector<std::string> warnings;
  for (size_t i = 0; i < first_kept; ++i) {
    if (keep.contains(steps[i])) continue;
    const auto reason = remove_checkpoint(checkpoint_path(folder, steps[i]));
    if (reason) warnings.push_back(*reason);
  }
  return warnings;
}

}  // namespace quern
